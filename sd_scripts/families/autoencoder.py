"""Pictures through a diffusers autoencoder and back: what the families share."""

from typing import Any

import torch
from torch import Tensor

PIXELS_AT_ONCE = 4 * 1024 * 1024
"""The encoder's activations are large: a batch above four pictures of 1024x1024 goes through in slices."""


@torch.no_grad()
def encoded(vae: Any, pixels: Tensor) -> Tensor:
    """(B, 3, H, W) in -1..1 -> latents (B, C, H/8, W/8) float32 on the VAE's device, neither shifted nor scaled.

    The mean of the VAE's distribution: it is so narrow that drawing from it would only make caches differ from run
    to run. What overflows is not finite.
    """
    at_once = max(1, PIXELS_AT_ONCE // (pixels.shape[-2] * pixels.shape[-1]))
    slices = [vae.encode(part.to(vae.device, vae.dtype)).latent_dist.mode() for part in pixels.split(at_once)]
    return torch.cat(slices).float()


@torch.no_grad()
def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Latents (B, C, h, w), neither shifted nor scaled -> pictures (B, 3, 8h, 8w) float32 in 0..1.

    Half precision is tried first; where it overflows the picture is decoded in float32 instead of turning black.
    """
    dtype = vae.dtype
    pixels = vae.decode(latents.to(dtype)).sample.float()
    if not torch.isfinite(pixels).all():
        pixels = vae.float().decode(latents.float()).sample
        vae.to(dtype)
    return (pixels / 2 + 0.5).clamp(0, 1)
