"""Encode and decode images with a diffusers autoencoder, as all families do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.memory_facts import PIXELS_AT_ONCE

TILE = 64
"""Largest tile side in latents for tiled decoding: 512 pixels."""
FRAMES_AT_ONCE = 4
"""Frames of a clip that a video VAE reads at a time."""
LARGEST_AT_ONCE = 6
"""How many of the decoder's largest activations exist at the same time, convolution workspaces included."""


@torch.no_grad()
def vae_encode(vae: Any, pixels: Tensor) -> Tensor:
    """Encode (B, 3, H, W) in -1..1 -> latents (B, C, H/8, W/8), neither shifted nor scaled, in the VAE's dtype on its
    device; of clips (B, 3, F, H, W) -> (B, C, f, h, w).

    Returns the mean of the VAE's distribution: it is so narrow that sampling would only make caches differ between
    runs. Overflows give non-finite values.
    """
    frames = min(FRAMES_AT_ONCE, pixels.shape[2]) if pixels.ndim == 5 else 1
    at_once = max(1, PIXELS_AT_ONCE // (pixels.shape[-2] * pixels.shape[-1] * frames))
    weight = _weight(vae)
    dtype = weight.dtype
    with _in_float32(vae) if _is_emulated(vae) else nullcontext():
        parts = (part.to(weight.device, weight.dtype) for part in pixels.split(at_once))
        slices = [vae.encode(part).latent_dist.mode() for part in parts]
    return torch.cat(slices).to(dtype)


Tiled = Callable[[Any, int], AbstractContextManager[None]]
"""VAE, side in latents -> context in which it decodes overlapping tiles and blends them."""


@torch.no_grad()
def vae_decode(vae: Any, latents: Tensor, tiled: Tiled | None = None, widest: int = 0) -> Tensor:
    """Decode latents (B, C, h, w), neither shifted nor scaled -> images (B, 3, 8h, 8w) float32 in 0..1.

    `tiled` and `widest`, the decoder's largest activation for each latent in values, are for VAEs other than
    diffusers' AutoencoderKL.

    The VAE's own dtype is tried first, unless the CPU emulates it; where it overflows the image is decoded in float32
    instead of turning black.
    """
    with _in_float32(vae) if _is_emulated(vae) else nullcontext():
        pixels = _vae_decode(vae, latents.to(_weight(vae).dtype), tiled or tiled_decoding, widest).float()
    if not torch.isfinite(pixels).all():
        with _in_float32(vae):
            pixels = _vae_decode(vae, latents.float(), tiled or tiled_decoding, widest)
    return (pixels / 2 + 0.5).clamp(0, 1)


def _is_emulated(vae: Any) -> bool:
    """Return whether the VAE's dtype is one that CPUs emulate: bfloat16 convolutions take 100 times as long there."""
    weight = _weight(vae)
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16


def _weight(vae: Any) -> Tensor:
    """Return a weight, whose dtype and device are the VAE's: for its own properties diffusers visits every module."""
    return next(vae.parameters())


@contextmanager
def _in_float32(vae: Any) -> Iterator[None]:
    """Let the VAE compute in float32, whatever its dtype."""
    dtype = _weight(vae).dtype
    try:
        vae.float()
        yield
    finally:
        nn.Module.to(vae, dtype)  # diffusers' own warns about some VAEs for no reason


def _vae_decode(vae: Any, latents: Tensor, tiled: Tiled, widest: int) -> Tensor:
    """Decode, in tiles where the whole image does not fit into the GPU memory that training leaves free."""
    if _has_room(vae, latents, widest):
        with suppress(torch.OutOfMemoryError):
            return vae.decode(latents).sample
        torch.cuda.empty_cache()
    with tiled(vae, min(TILE, max(latents.shape[-2:]) // 2)):
        return vae.decode(latents).sample


def _has_room(vae: Any, latents: Tensor, widest: int) -> bool:
    if not latents.is_cuda:
        return True
    if not widest:
        widths = vae.config.block_out_channels
        widest = 4 ** (len(widths) - 1) * widths[min(1, len(widths) - 1)]
    needed = LARGEST_AT_ONCE * latents[:, :1].numel() * widest * latents.element_size()
    free, _ = torch.cuda.mem_get_info(latents.device)
    unused = torch.cuda.memory_reserved(latents.device) - torch.cuda.memory_allocated(latents.device)
    return needed < free + unused


@contextmanager
def tiled_decoding(vae: Any, side: int) -> Iterator[None]:
    """Let the VAE decode overlapping tiles of `side` latents and blend them."""
    with attributes_restored(vae, ("use_tiling", "tile_latent_min_size", "tile_sample_min_size")):
        vae.enable_tiling()
        vae.tile_latent_min_size = side
        vae.tile_sample_min_size = side * 2 ** (len(vae.config.block_out_channels) - 1)
        yield


@contextmanager
def attributes_restored(vae: Any, names: Sequence[str]) -> Iterator[None]:
    """Restore these attributes of a VAE after the block."""
    before = {name: getattr(vae, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)
