"""Pictures to latents and back with SDXL's autoencoder."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.family import Parts

PIXELS_AT_ONCE = 4 * 1024 * 1024
"""The encoder's activations are large: a batch above four pictures of 1024x1024 goes through in slices."""


@torch.no_grad()
def encode_images(parts: Parts, pixels: Tensor) -> Tensor:
    """(B, 3, H, W) in -1..1 -> latents (B, 4, H/8, W/8) float32 on the VAE's device, not yet scaled.

    The mean of the VAE's distribution: it is so narrow that drawing from it would only make caches differ from run
    to run. Raises ValueError where the VAE overflowed, as SDXL's own does in half precision.
    """
    vae: Any = parts.vae
    at_once = max(1, PIXELS_AT_ONCE // (pixels.shape[-2] * pixels.shape[-1]))
    slices = [vae.encode(part.to(vae.device, vae.dtype)).latent_dist.mode() for part in pixels.split(at_once)]
    latents = torch.cat(slices).float()
    if not torch.isfinite(latents).all():
        raise ValueError(
            f"no_half_vae: the VAE overflowed in {str(vae.dtype).removeprefix('torch.')}; turn this option on, "
            "or set vae to one made for half precision"
        )
    return latents


@torch.no_grad()
def decode_latents(parts: Parts, latents: Tensor) -> Tensor:
    """Scaled latents (B, 4, h, w) -> pictures (B, 3, 8h, 8w) float32 in 0..1.

    Half precision is tried first; where it overflows the picture is decoded in float32 instead of turning black.
    """
    vae: Any = parts.vae
    dtype = vae.dtype
    latents = latents / vae.config.scaling_factor
    pixels = vae.decode(latents.to(dtype)).sample.float()
    if not torch.isfinite(pixels).all():
        pixels = vae.float().decode(latents.float()).sample
        vae.to(dtype)
    return (pixels / 2 + 0.5).clamp(0, 1)
