"""Encode images to latents, and decode them, with Qwen-Image's VAE: a video VAE, for which an image is one frame."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.autoencoder import attributes_restored, vae_decode, vae_encode
from sd_scripts.families.common.family import Components

LATENTS = LatentLayout(suffix="qwen_image", shape=lambda extent: (16, extent.height // 8, extent.width // 8))


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 16, H/8, W/8) float32, normalised by channel, on the VAE's device.

    Raises ValueError if they are not finite.
    """
    vae: Any = components.vae
    latents = vae_encode(vae, pixels[:, :, None]).squeeze(2).float()  # scaling in half precision would round
    if torch.isfinite(latents).all():
        mean, std = _statistics(vae, latents.device)
        return (latents - mean) / std
    if vae.dtype == torch.float16:
        raise ValueError("mixed_precision: the VAE overflowed in fp16; set mixed_precision = bf16 or no_half_vae")
    raise ValueError("vae: the VAE produces non-finite values; download its file again or choose another")


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, h, w), normalised -> images (B, 3, 8h, 8w) float32 in 0..1."""
    vae: Any = components.vae
    mean, std = _statistics(vae, latents.device)
    widest = 64 * 2 * vae.config.base_dim * 3  # pixels, channels, and the frames that a causal convolution reads
    return vae_decode(vae, (latents * std + mean)[:, :, None], tiled, widest).squeeze(2)


def _statistics(vae: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the latents, (1, C, 1, 1) float32."""
    mean, std = (torch.tensor(vae.config[f"latents_{name}"], device=device) for name in ("mean", "std"))
    return mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)


@contextmanager
def tiled(vae: Any, side: int) -> Iterator[None]:
    """Let the VAE decode overlapping tiles of `side` latents and blend them."""
    tile, stride = 8 * side, 6 * side  # pixels
    sizes = (f"tile_sample_{kind}_{axis}" for kind in ("min", "stride") for axis in ("height", "width"))
    with attributes_restored(vae, ("use_tiling", *sizes)):
        vae.enable_tiling(tile, tile, stride, stride)
        yield
