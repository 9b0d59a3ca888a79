"""FLUX.2 klein 4B at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.families.flux2.load import TEXT_ENCODER
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer
from sd_scripts.families.flux2.text import LAYERS
from sd_scripts.families.flux2.vae import make_vae

QWEN3_4B = {"width": 2_560, "mlp_width": 9_728, "heads": 32, "key_heads": 8}


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: Flux2Transformer(Flux2Params()),
            TEXT_ENCODER: qwen3(**config_of(shapes_of_sizes(**QWEN3_4B, layers=LAYERS[-1]))),
            VAE: make_vae(),
        }
