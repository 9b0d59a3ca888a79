"""HunyuanVideo in miniature: files of the real layout with tiny widths and random weights, for the demo and tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.common.blocks.streams import Modulation
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_hunyuan_vae import AUTOENCODER, calibrate_clips
from sd_scripts.families.common.encoders.tiny_llama import WIDTH, llama_tokenizer, tiny_encoders
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    Miniature,
    clip_tokenizer,
    draw_weights,
    fit_denoiser,
    states_of,
    weaken_conditioning,
)

PARAMS = HunyuanParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=WIDTH,
    pooled_width=WIDTH,
    refiner_blocks=1,
    double_blocks=3,  # the fewest that can take turns, with blocks_to_swap = 2
    single_blocks=4,
)
SHIFT, GUIDANCE = 7.0, 1.0
"""Timestep shift and guidance of the fit, as recommended for training."""


def write_miniature(folder: Path, params: HunyuanParams = PARAMS) -> Miniature:
    """Create the four files of a HunyuanVideo, tokenizers next to them, and captioned images: a few MB, in seconds.
    `params` may be those of an image-to-video model."""
    llama, clip = llama_tokenizer(), clip_tokenizer()
    modules = tiny_modules(len(llama), len(clip), params)
    return miniature.write_miniature(CARD, folder, (llama, clip), states_of(modules))


@torch.no_grad()
def tiny_modules(vocabulary: int, clip_vocabulary: int, params: HunyuanParams = PARAMS) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call; LLaMA with all its layers."""
    transformer, vae = HunyuanVideoTransformer(params), AutoencoderKLHunyuanVideo(**AUTOENCODER)
    modules = {DENOISER: transformer, **tiny_encoders(vocabulary, clip_vocabulary), VAE: vae}
    generator = draw_weights(modules)
    modulations = [module.linear for module in transformer.modules() if isinstance(module, Modulation)]
    weaken_conditioning(modulations, transformer.get_submodule("final_layer.adaLN_modulation.1"))  # type: ignore[arg-type]
    _fit(transformer, calibrate_clips(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _fit(transformer: HunyuanVideoTransformer, latents: Tensor, generator: torch.Generator) -> None:
    double: Any = transformer.double_blocks
    single: Any = transformer.single_blocks
    outputs = [block.img_attn_proj.weight for block in double]
    outputs += [block.linear2.weight[:, : transformer.params.width] for block in single]

    def run(noisy: Tensor, times: Tensor) -> object:
        start = noisy.new_zeros(len(noisy), transformer.params.image_channels, *noisy.shape[2:])
        return transformer(torch.cat((noisy, start), dim=1)[:, :, None], *vectors(len(noisy), times, generator))

    fit_denoiser(transformer.final_layer.linear, outputs, latents, generator, run, shift=SHIFT)


def vectors(count: int, times: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the text, the pooled text, the timesteps and the guidance of the fit."""
    pooled = torch.randn(count, WIDTH, generator=generator)
    return torch.zeros(count, 8, WIDTH), pooled, times, torch.full((count,), GUIDANCE)
