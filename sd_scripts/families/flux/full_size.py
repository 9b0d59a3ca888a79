"""FLUX.1 dev at full size, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.full_size import AUTOENCODER, CLIP_L
from sd_scripts.families.flux.model import FluxParams, FluxTransformer

T5: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": False,
}


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: FluxTransformer(FluxParams()),
            "text_encoder1": CLIPTextModel(CLIPTextConfig(**CLIP_L)),
            "text_encoder2": T5EncoderModel(T5Config(**T5)),
            VAE: AutoencoderKL(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False, **AUTOENCODER),
        }
