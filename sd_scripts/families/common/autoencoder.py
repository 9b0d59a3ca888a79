"""Encode and decode images with a diffusers autoencoder, as all families do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.memory_facts import PIXELS_AT_ONCE

SIDES = (64, 32)
"""Sides of tiles, in latents: 512 pixels, and 256 where memory is scarce."""
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


class Tile(NamedTuple):
    """What is decoded at a time, in latents."""

    side: int
    frames: int | None = None
    """None: all frames of the clip."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a VAE decodes what does not fit into memory whole."""

    tiled: Callable[[Any, Tile], AbstractContextManager[None]]
    """VAE, tile -> context in which it decodes overlapping tiles and blends them."""
    values: Callable[[Any, tuple[int, ...]], float]
    """VAE, shape of latents -> how many values the decoder keeps at its peak, convolution workspaces included."""
    frames: tuple[int, ...] = ()
    """Lengths of tiles that are shorter than the clip, in latents, longest first."""

    def tiles(self, shape: tuple[int, ...]) -> list[Tile]:
        """Return the tiles to choose from for latents of this shape, largest first."""
        half = max(shape[-2:]) // 2
        tiles = [Tile(side) for side in dict.fromkeys(min(side, half) for side in SIDES)]
        return [*tiles, *(Tile(tiles[-1].side, frames) for frames in self.frames if frames < shape[2])]


def tile_shape(shape: tuple[int, ...], tile: Tile) -> tuple[int, ...]:
    """Return the shape of the latents of a tile; one of a clip begins with a frame of the tile before."""
    *before, height, width = shape
    if tile.frames is not None:
        before[2] = min(before[2], tile.frames + 1)
    return *before, min(height, tile.side), min(width, tile.side)


@torch.no_grad()
def vae_decode(vae: Any, latents: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Decode latents (B, C, h, w), neither shifted nor scaled -> images (B, 3, 8h, 8w) float32 in 0..1.

    `tiling` is for VAEs other than diffusers' AutoencoderKL.

    The VAE's own dtype is tried first, unless the CPU emulates it; where it overflows the image is decoded in float32
    instead of turning black.
    """
    with _in_float32(vae) if _is_emulated(vae) else nullcontext():
        pixels = _vae_decode(vae, latents.to(_weight(vae).dtype), tiling or IMAGE_TILING).float()
    if not torch.isfinite(pixels).all():
        with _in_float32(vae):
            pixels = _vae_decode(vae, latents.float(), tiling or IMAGE_TILING)
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


def _vae_decode(vae: Any, latents: Tensor, tiling: Tiling) -> Tensor:
    """Decode whole, or in the largest tiles that fit into the GPU memory that training leaves free."""
    shape = tuple(latents.shape)
    *larger, smallest = tiling.tiles(shape)
    for tile in (None, *larger):
        needed = tiling.values(vae, tile_shape(shape, tile) if tile else shape) * latents.element_size()
        if needed < _free_memory(latents.device):
            with suppress(torch.OutOfMemoryError), tiling.tiled(vae, tile) if tile else nullcontext():
                return vae.decode(latents).sample
            torch.cuda.empty_cache()
    with tiling.tiled(vae, smallest):
        return vae.decode(latents).sample


def _free_memory(device: torch.device) -> float:
    """Return the free bytes of a GPU; a CPU has no limit."""
    if device.type != "cuda":
        return float("inf")
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _image_values(vae: Any, shape: tuple[int, ...]) -> float:
    widths = vae.config.block_out_channels
    batch, _, height, width = shape
    pixels = batch * height * width * 4 ** (len(widths) - 1)
    return float(LARGEST_AT_ONCE * pixels * widths[min(1, len(widths) - 1)])


@contextmanager
def _tiled_image(vae: Any, tile: Tile) -> Iterator[None]:
    with attributes_restored(vae, ("use_tiling", "tile_latent_min_size", "tile_sample_min_size")):
        vae.enable_tiling()
        vae.tile_latent_min_size = tile.side
        vae.tile_sample_min_size = tile.side * 2 ** (len(vae.config.block_out_channels) - 1)
        yield


IMAGE_TILING = Tiling(tiled=_tiled_image, values=_image_values)


@contextmanager
def attributes_restored(vae: Any, names: Sequence[str]) -> Iterator[None]:
    """Restore these attributes of a VAE after the block."""
    before = {name: getattr(vae, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)
