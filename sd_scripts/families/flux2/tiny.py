"""FLUX.2 klein in miniature: files of the real layout with tiny widths and random weights, for the demo and tests."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import qwen3
from sd_scripts.families.common.encoders.tiny_qwen3 import WIDTH, qwen3_tokenizer, tiny_config
from sd_scripts.families.flux2.card import CARD
from sd_scripts.families.flux2.load import LAYOUTS, TEXT_ENCODER
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer, Modulation
from sd_scripts.families.flux2.text import LAYERS
from sd_scripts.families.flux2.vae import make_vae
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, timestep_embedding
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    AUTOENCODER,
    CONDITIONING,
    Miniature,
    draw_weights,
    fit_denoiser,
    images,
    in_files,
    with_controls,
)

PARAMS = Flux2Params(
    width=64,
    heads=2,
    mlp_width=192,
    text_width=len(LAYERS) * WIDTH,
    double_blocks=3,  # the fewest that can take turns, with blocks_to_swap = 3
    single_blocks=6,
)


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a FLUX.2 klein, the tokenizer next to them, captioned images, and their control
    images."""
    tokenizer = qwen3_tokenizer()
    tokenizer.model_max_length = 64  # padded to 512 tokens, text would take most of a step
    tensors = in_files(tiny_modules(len(tokenizer)), LAYOUTS)
    return with_controls(miniature.write_miniature(CARD, folder, (tokenizer,), tensors), CARD.name, folder)


@torch.no_grad()
def tiny_modules(vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer = Flux2Transformer(PARAMS)
    vae = make_vae(latent_channels=PARAMS.channels // 4, **AUTOENCODER)
    modules = {DENOISER: transformer, TEXT_ENCODER: qwen3(**tiny_config(vocabulary, LAYERS[-1])), VAE: vae}
    generator = draw_weights(modules)
    _weaken_conditioning(transformer)
    _fit(transformer, _calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _weaken_conditioning(transformer: Flux2Transformer) -> None:
    """Make tokens matter more than the vector of time, and each block add about half of its output: modulations have no
    bias for that, so their gates read the mean of the vectors."""
    vectors = transformer.time_in(timestep_embedding(torch.linspace(0.05, 0.95, 16)))
    mean = torch.nn.functional.silu(vectors).mean(0)
    for module in transformer.modules():
        if isinstance(module, Modulation):
            module.lin.weight.mul_(CONDITIONING)
            module.lin.weight.view(-1, 3, PARAMS.width, PARAMS.width)[:, 2] = 0.5 * mean / mean.square().sum()
    last: Any = transformer.get_submodule("final_layer.adaLN_modulation.1")
    last.weight.mul_(CONDITIONING)


def _calibrate(vae: Any) -> Tensor:
    """Give the autoencoder's running moments those of the drawn images' latents; return these normalised,
    (12, 128, h, w)."""
    encoded = vae.encode(images()).latent_dist.mode()
    cells = pack(encoded).transpose(1, 2).unflatten(-1, grid_of(encoded))
    vae.bn.running_mean.copy_(cells.mean((0, 2, 3)))
    vae.bn.running_var.copy_(cells.var((0, 2, 3)))
    return (cells - cells.mean((0, 2, 3), keepdim=True)) / (cells.var((0, 2, 3), keepdim=True) + 1e-4).sqrt()


def _fit(transformer: Flux2Transformer, latents: Tensor, generator: torch.Generator) -> None:
    outputs: list[Tensor] = [block.img_attn.proj.weight for block in transformer.double_blocks]  # type: ignore[union-attr, misc]
    outputs += [block.linear2.weight[:, : PARAMS.width] for block in transformer.single_blocks]  # type: ignore[index, union-attr]
    grid = latents.shape[-2], latents.shape[-1]
    text = torch.zeros(len(latents), 8, PARAMS.text_width)

    def tokens(cells: Tensor) -> Tensor:
        return cells.flatten(2).transpose(1, 2)

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(tokens(noisy), text, times, grid)

    last = transformer.final_layer.linear
    fit_denoiser(last, outputs, latents, generator, run, shift=shift_of(math.prod(grid)), tokens_of=tokens)
