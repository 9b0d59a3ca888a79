"""FLUX.1 dev at full size, without weights."""

import torch
from diffusers import AutoencoderKL
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.full_size import AUTOENCODER, CLIP_L, T5_XXL
from sd_scripts.families.flux.model import FluxParams, FluxTransformer


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: FluxTransformer(FluxParams()),
            "text_encoder1": CLIPTextModel(CLIPTextConfig(**CLIP_L)),
            "text_encoder2": T5EncoderModel(T5Config(**T5_XXL)),
            VAE: AutoencoderKL(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False, **AUTOENCODER),
        }
