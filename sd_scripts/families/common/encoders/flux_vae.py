"""Encode images to latents, and decode them, with FLUX.1's autoencoder, which other families have too."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.autoencoder import vae_decode, vae_encode
from sd_scripts.families.common.family import Components

LATENT_SCALE, LATENT_SHIFT = 0.3611, 0.1159
"""latents = (encoded - shift) * scale"""
CONFIG: dict[str, Any] = {
    "scaling_factor": LATENT_SCALE,
    "shift_factor": LATENT_SHIFT,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
"""Configuration that the autoencoder's shapes do not determine."""


def latent_layout(suffix: str) -> LatentLayout:
    """Return how latents are cached in files with this suffix."""
    return LatentLayout(suffix=suffix, shape=lambda extent: (16, extent.height // 8, extent.width // 8))


def encode_images(components: Components, pixels: Tensor, option: str = "vae") -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 16, H/8, W/8) float32, shifted and scaled, on the VAE's device.

    Raises ValueError if they are not finite. `option`: the one that names the autoencoder's file.
    """
    vae: Any = components.vae
    latents = vae_encode(vae, pixels).float()  # scaling in half precision would round
    if torch.isfinite(latents).all():
        return (latents - vae.config.shift_factor) * vae.config.scaling_factor
    if vae.dtype == torch.float16:
        raise ValueError("mixed_precision: the autoencoder overflowed in fp16; set mixed_precision = bf16")
    raise ValueError(f"{option}: the autoencoder produces non-finite values; download its file again or choose another")


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, h, w), shifted and scaled -> images (B, 3, 8h, 8w) float32 in 0..1."""
    vae: Any = components.vae
    return vae_decode(vae, latents / vae.config.scaling_factor + vae.config.shift_factor)
