"""Anima at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.anima.load import TEXT_ENCODER
from sd_scripts.families.anima.model import AnimaParams, AnimaTransformer
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    shapes = shapes_of_sizes(width=1_024, mlp_width=3_072, heads=16, key_heads=8, layers=28)  # Qwen3-0.6B
    with torch.device("meta"):
        return {
            DENOISER: AnimaTransformer(AnimaParams()),
            TEXT_ENCODER: qwen3(normed=True, **config_of(shapes)),
            VAE: AutoencoderKLQwenImage(),
        }
