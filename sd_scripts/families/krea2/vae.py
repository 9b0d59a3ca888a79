"""Encode images to latents, and decode them, with Qwen-Image's VAE: a video VAE, for which an image is one frame."""

from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.encoders.causal_vae import decode_clip, encode_clip
from sd_scripts.families.common.family import Components

LATENTS = LatentLayout(suffix="krea2", shape=lambda extent: (16, extent.height // 8, extent.width // 8))


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, 16, H/8, W/8) float32, normalised by channel, on the VAE's device.

    Raises ValueError if they are not finite.
    """
    return encode_clip(components.vae, pixels[:, :, None]).squeeze(2)


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, h, w), normalised -> images (B, 3, 8h, 8w) float32 in 0..1."""
    return decode_clip(components.vae, latents[:, :, None]).squeeze(2)
