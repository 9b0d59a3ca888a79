"""Krea 2 at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.families.common.full_size import QWEN3_4B
from sd_scripts.families.krea2.load import ROPE_THETA, TEXT_ENCODER
from sd_scripts.families.krea2.model import Krea2Params, Krea2Transformer
from sd_scripts.families.krea2.text import LAYERS
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: Krea2Transformer(Krea2Params()),
            TEXT_ENCODER: qwen3(**config_of(shapes_of_sizes(**QWEN3_4B, layers=LAYERS[-1]), ROPE_THETA)),
            VAE: AutoencoderKLQwenImage(),
        }
