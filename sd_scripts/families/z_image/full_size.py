"""Z-Image at full size, without weights."""

import torch
from diffusers import AutoencoderKL
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.families.common.full_size import AUTOENCODER, QWEN3_4B
from sd_scripts.families.z_image.load import TEXT_ENCODER
from sd_scripts.families.z_image.model import ZImageParams, ZImageTransformer
from sd_scripts.families.z_image.text import LAYERS


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: ZImageTransformer(ZImageParams()),
            TEXT_ENCODER: qwen3(**config_of(shapes_of_sizes(**QWEN3_4B, layers=LAYERS))),
            VAE: AutoencoderKL(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False, **AUTOENCODER),
        }
