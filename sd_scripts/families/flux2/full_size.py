"""FLUX.2 klein at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.families.common.full_size import QWEN3_4B
from sd_scripts.families.flux2.load import TEXT_ENCODER
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer
from sd_scripts.families.flux2.text import LAYERS
from sd_scripts.families.flux2.vae import make_vae

KLEIN_9B = Flux2Params(width=4096, heads=32, mlp_width=12_288, text_width=12_288, double_blocks=8, single_blocks=24)
QWEN3_8B = {"width": 4_096, "mlp_width": 12_288, "heads": 32, "key_heads": 8}


def modules() -> dict[str, nn.Module]:
    """Return the components of klein 4B on the meta device."""
    return _modules(Flux2Params(), QWEN3_4B)


def modules_9b() -> dict[str, nn.Module]:
    """Return the components of klein 9B on the meta device."""
    return _modules(KLEIN_9B, QWEN3_8B)


def _modules(params: Flux2Params, encoder: dict[str, int]) -> dict[str, nn.Module]:
    with torch.device("meta"):
        return {
            DENOISER: Flux2Transformer(params),
            TEXT_ENCODER: qwen3(**config_of(shapes_of_sizes(**encoder, layers=LAYERS[-1]))),
            VAE: make_vae(),
        }
