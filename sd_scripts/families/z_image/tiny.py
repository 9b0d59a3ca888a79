"""Z-Image in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.common.encoders.qwen3 import qwen3
from sd_scripts.families.common.encoders.tiny_qwen3 import WIDTH, qwen3_tokenizer, tiny_config
from sd_scripts.families.z_image.card import CARD
from sd_scripts.families.z_image.load import LAYOUTS, TEXT_ENCODER
from sd_scripts.families.z_image.model import Modulation, ZImageParams, ZImageTransformer, pack
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    AUTOENCODER,
    CONDITIONING,
    Miniature,
    calibrate,
    draw_weights,
    fit_denoiser,
    in_files,
)

PARAMS = ZImageParams(
    width=96,
    heads=3,
    mlp_width=256,
    text_width=WIDTH,
    time_width=96,
    blocks=5,  # with blocks_to_swap = 2, four take turns
)
LAYERS = 3
"""Of the text encoder."""
SHIFT = 2.0
"""Timestep shift of the fit, as recommended for training."""


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a Z-Image, the tokenizer next to them, and captioned images: a few MB, in seconds."""
    tokenizer = qwen3_tokenizer()
    return miniature.write_miniature(CARD, folder, (tokenizer,), in_files(tiny_modules(len(tokenizer)), LAYOUTS))


@torch.no_grad()
def tiny_modules(vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer = ZImageTransformer(PARAMS)
    vae = AutoencoderKL(latent_channels=16, **flux_vae.CONFIG, **AUTOENCODER)
    modules = {DENOISER: transformer, TEXT_ENCODER: qwen3(**tiny_config(vocabulary, LAYERS)), VAE: vae}
    generator = draw_weights(modules)
    modulations = [module for module in transformer.modules() if isinstance(module, Modulation)]
    linears: list[Any] = [module[0] for module in modulations]
    for linear in linears:
        linear.bias.view(4, PARAMS.width)[[1, 3]] = 0.5  # gates
    for linear in (*linears, transformer.last_layer.adaLN_modulation[1]):
        linear.weight.mul_(CONDITIONING)
    _fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _fit(transformer: ZImageTransformer, latents: Tensor, generator: torch.Generator) -> None:
    layers: Any = transformer.layers
    outputs = [block.attention.to_out[0].weight for block in layers]
    text = torch.zeros(len(latents), 8, PARAMS.text_width)

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(pack(noisy), text, times, grid_of(latents))

    def tokens(velocity: Tensor) -> Tensor:
        return -pack(velocity)

    fit_denoiser(transformer.last_layer.linear, outputs, latents, generator, run, shift=SHIFT, tokens_of=tokens)
