"""Encode images to latents, and decode them, with FLUX.2's autoencoder: 2x2 cells of 32 channels are one latent."""

from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.autoencoder import vae_decode, vae_encode
from sd_scripts.families.common.family import Components
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack
from sd_scripts.library.files.lean_diffusers import AutoencoderKLFlux2

CELL, CHANNELS, PIXELS = 2, 128, 16
"""Latents of the encoder along the side of one here, its channels, and pixels along its side."""
LATENTS = LatentLayout(suffix="flux2", shape=lambda extent: (CHANNELS, extent.height // PIXELS, extent.width // PIXELS))


class Moments(nn.Module):
    """Mean and variance of each channel of the latents: the batch norm of the file without its counter, an integer."""

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))


def make_vae(**config: Any) -> AutoencoderKLFlux2:
    """Make an autoencoder whose batch norm is its moments."""
    vae = AutoencoderKLFlux2(**config)
    vae.bn = Moments(CELL**2 * vae.config.latent_channels)
    return vae


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 128, H/16, W/16) float32, normalised, on the VAE's device.

    Raises ValueError if they are not finite.
    """
    vae: Any = components.vae
    encoded = vae_encode(vae, pixels).float()
    cells = pack(encoded).transpose(1, 2).unflatten(-1, grid_of(encoded))  # channels first in each cell
    mean, std = _moments(vae)
    latents = (cells - mean) / std
    if torch.isfinite(latents).all():
        return latents
    if vae.dtype == torch.float16:
        raise ValueError("mixed_precision: the autoencoder overflowed in fp16; set mixed_precision = bf16")
    raise ValueError("vae: the autoencoder produces non-finite values; download its file again or choose another")


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode normalised latents (B, 128, h, w) -> images (B, 3, 16h, 16w) float32 in 0..1."""
    vae: Any = components.vae
    mean, std = _moments(vae)
    cells = latents * std + mean
    return vae_decode(vae, unpack(cells.flatten(2).transpose(1, 2), (latents.shape[-2], latents.shape[-1])))


def _moments(vae: Any) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel, (128, 1, 1) float32."""
    variance = vae.bn.running_var.float() + vae.config.batch_norm_eps
    return vae.bn.running_mean.float()[:, None, None], variance.sqrt()[:, None, None]
