"""FLUX.1 in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests.

Latents have the mean and variance of FLUX.1's, and the last layer is fitted to random features, computed without
attention. Attention, which LoRA adapts, then disturbs a fair denoiser, so that the loss falls within a few dozen steps.
"""

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from transformers import CLIPTextModel, T5Config, T5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.load import LAYOUTS
from sd_scripts.families.flux.model import DoubleBlock, FluxParams, FluxTransformer, Modulation, SingleBlock
from sd_scripts.library.diffusion.dit_layers import grid_of, pack
from sd_scripts.library.text.tokenizers import T5_ROWS
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    AUTOENCODER,
    T5_WIDTH,
    Miniature,
    calibrate,
    clip_config,
    clip_tokenizer,
    draw_weights,
    fit_velocity,
    in_files,
    t5_sizes,
    t5_tokenizer,
    weaken_conditioning,
    without_attention,
)

CLIP_WIDTH = 64
SHAPE = FluxParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=T5_WIDTH,
    pooled_width=CLIP_WIDTH,
    double_blocks=3,  # the fewest that can take turns, with blocks_to_swap = 2
    single_blocks=4,
)
SHIFT, GUIDANCE = 3.1582, 1.0
"""Timestep shift and guidance of the fit, as recommended for training."""


def write_miniature(folder: Path, shape: FluxParams = SHAPE) -> Miniature:
    """Create the four files of a FLUX.1 dev, tokenizers next to them, and captioned images: a few MB, in seconds.
    `shape` may have a different number of blocks."""
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    return miniature.write_miniature(CARD, folder, (clip, t5), in_files(tiny_modules(len(clip), shape), LAYOUTS))


def t5_config(rows: int) -> T5Config:
    """Return the sizes of a T5 whose embedding has this many rows."""
    return T5Config(**t5_sizes(rows), tie_word_embeddings=False)


@torch.no_grad()
def tiny_modules(clip_vocabulary: int, shape: FluxParams = SHAPE) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer = FluxTransformer(shape)
    vae = AutoencoderKL(latent_channels=16, **flux_vae.CONFIG, **AUTOENCODER)
    modules = {
        DENOISER: transformer,
        VAE: vae,
        "text_encoder1": CLIPTextModel(clip_config(clip_vocabulary, CLIP_WIDTH, "quick_gelu")),
        "text_encoder2": T5EncoderModel(t5_config(T5_ROWS)),
    }
    generator = draw_weights(modules)
    modulations = [module.lin for module in transformer.modules() if isinstance(module, Modulation)]
    weaken_conditioning(modulations, transformer.get_submodule("final_layer.adaLN_modulation.1"))  # type: ignore[arg-type]
    fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def fit(transformer: FluxTransformer, latents: Tensor, generator: torch.Generator) -> None:
    """Fit the last layer to predict the velocity without attention, which disturbs it afterwards."""
    attention_outputs = [_attention_output(block) for block in (*transformer.double_blocks, *transformer.single_blocks)]
    with without_attention(attention_outputs, generator):
        noise = torch.randn(latents.shape, generator=generator)
        times = torch.sigmoid(torch.randn(len(latents), generator=generator) + math.log(SHIFT))
        text = torch.zeros(len(latents), 8, T5_WIDTH)
        pooled = torch.randn(len(latents), CLIP_WIDTH, generator=generator)
        guidance = torch.full((len(latents),), GUIDANCE)

        def run(noisy: Tensor) -> object:
            return transformer(pack(noisy), text, pooled, times, guidance, grid_of(latents))

        fit_velocity(transformer.final_layer.linear, latents, noise, times, run)


def _attention_output(block: Any) -> Tensor:
    """Return the weight of the projection that adds attention to the image tokens, as a view."""
    if isinstance(block, DoubleBlock):
        return block.img_attn.proj.weight
    assert isinstance(block, SingleBlock)
    return block.linear2.weight[:, : SHAPE.width]
