"""Encode images to latents, and decode them, with SDXL's autoencoder."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.autoencoder import vae_decode, vae_encode
from sd_scripts.families.common.family import Components

LATENTS = LatentLayout(
    suffix="sdxl", shape=lambda extent: (4, extent.height // 8, extent.width // 8), named_after_image=True
)


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 4, H/8, W/8) in the VAE's dtype on its device, not yet scaled.

    Raises ValueError if the VAE overflowed, as SDXL's own does in half precision.
    """
    vae: Any = components.vae
    latents = vae_encode(vae, pixels)
    if not torch.isfinite(latents).all():
        raise ValueError(
            f"no_half_vae: the VAE overflowed in {str(vae.dtype).removeprefix('torch.')}; turn this option on, "
            "or set vae to an fp16-safe VAE"
        )
    return latents


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode scaled latents (B, 4, h, w) -> images (B, 3, 8h, 8w) float32 in 0..1."""
    vae: Any = components.vae
    return vae_decode(vae, latents / vae.config.scaling_factor)
