"""HunyuanVideo in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests.

Latents have mean 0 and deviation 1, and the last layer is fitted to random features, computed without attention.
Attention, which LoRA adapts, then disturbs a fair denoiser, so that the loss falls within a few dozen steps.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_hunyuan_vae import AUTOENCODER, calibrate_clips
from sd_scripts.families.common.encoders.tiny_llama import WIDTH, llama_tokenizer, tiny_encoders
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer, Modulation
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    Miniature,
    clip_tokenizer,
    fit_velocity,
    randomize,
    states_of,
    weaken_conditioning,
    without_attention,
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


write_narrow = write_miniature
"""Its blocks are equal, as HunyuanVideo's are, so it needs the same number of compiled graphs."""


@torch.no_grad()
def tiny_modules(vocabulary: int, clip_vocabulary: int, params: HunyuanParams = PARAMS) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call; LLaMA with all its layers."""
    transformer, vae = HunyuanVideoTransformer(params), AutoencoderKLHunyuanVideo(**AUTOENCODER)
    modules = {DENOISER: transformer, **tiny_encoders(vocabulary, clip_vocabulary), VAE: vae}
    generator = torch.Generator().manual_seed(0)
    for module in modules.values():
        randomize(module, generator)
    modulations = [module.linear for module in transformer.modules() if isinstance(module, Modulation)]
    weaken_conditioning(modulations, transformer.get_submodule("final_layer.adaLN_modulation.1"))  # type: ignore[arg-type]
    _fit(transformer, calibrate_clips(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _fit(transformer: HunyuanVideoTransformer, latents: Tensor, generator: torch.Generator) -> None:
    """Fit the last layer to predict the velocity without attention, which disturbs it afterwards."""
    double: Any = transformer.double_blocks
    single: Any = transformer.single_blocks
    outputs = [block.img_attn_proj.weight for block in double]
    outputs += [block.linear2.weight[:, : transformer.params.width] for block in single]
    with without_attention(outputs, generator):
        noise = torch.randn(latents.shape, generator=generator)
        times = shifted(torch.sigmoid(torch.randn(len(latents), generator=generator)), SHIFT)
        text = torch.zeros(len(latents), 8, WIDTH)
        pooled = torch.randn(len(latents), WIDTH, generator=generator)
        guidance = torch.full((len(latents),), GUIDANCE)

        def run(noisy: Tensor) -> object:
            start = noisy.new_zeros(len(noisy), transformer.params.image_channels, *noisy.shape[2:])
            return transformer(torch.cat((noisy, start), dim=1)[:, :, None], text, pooled, times, guidance)

        fit_velocity(transformer.final_layer.linear, latents, noise, times, run)
