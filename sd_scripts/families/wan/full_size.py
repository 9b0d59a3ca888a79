"""Wan 2.1 T2V 14B at full size, without weights."""

from typing import Any

import torch
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan

UMT5: dict[str, Any] = {
    "vocab_size": 256_384,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10_240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": False,
}


def modules(layers: int = UMT5["num_layers"]) -> dict[str, nn.Module]:
    """Return the components on the meta device, with this many layers of the text encoder."""
    with torch.device("meta"):
        return {
            DENOISER: WanTransformer(WanParams()),
            "text_encoder1": UMT5EncoderModel(UMT5Config(**UMT5 | {"num_layers": layers})),
            VAE: AutoencoderKLWan(),
        }
