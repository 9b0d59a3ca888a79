"""Encode clips to latents, and decode them, with Wan's VAE; an image is a clip of one frame."""

from torch import Tensor

from sd_scripts.data.caches.caching import LatentLayout
from sd_scripts.families.common.encoders.causal_vae import decode_clip, encode_clip
from sd_scripts.families.common.family import Components
from sd_scripts.families.wan.card.memory_facts import latent_frames

LATENTS = LatentLayout(
    suffix="wan_clip",
    shape=lambda extent: (16, latent_frames(extent.frames), extent.height // 8, extent.width // 8),
)


def encode_images(components: Components, pixels: Tensor) -> Tensor:
    """Encode (B, 3, F, H, W) in -1..1 -> latents (B, 16, 1 + (F - 1) / 4, H/8, W/8) float32, normalised by channel."""
    return encode_clip(components.vae, pixels)


def decode_latents(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (B, 16, f, h, w), normalised -> frames (B, 3, F, H, W) float32 in 0..1."""
    return decode_clip(components.vae, latents)
