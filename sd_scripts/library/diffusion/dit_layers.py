"""Parts that diffusion transformers share: packing, timestep embedding, rotary embedding, modulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH = 2
"""Latents along a side of a token."""
TIME_CHANNELS = 256
ROPE_BASE = 10_000
EPS = 1e-6
GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR

Grid = tuple[int, int]
"""Rows and columns of the tokens of an image."""
Grid3d = tuple[int, int, int]
"""Frames, rows and columns of the tokens of a clip."""
Rope = tuple[Tensor, Tensor]
"""Cosines and sines (1, S, 1, D/2) float32 of every token's position."""


def grid_of(latents: Tensor) -> Grid:
    """Return the rows and columns of tokens of latents (B, C, h, w)."""
    return latents.shape[-2] // PATCH, latents.shape[-1] // PATCH


def pack(latents: Tensor) -> Tensor:
    """Pack (B, C, h, w) -> (B, h/2 · w/2, 4C), row by row, channels first in each token. h and w must be even."""
    patches = latents.unflatten(-1, (-1, PATCH)).unflatten(-3, (-1, PATCH))  # (B, C, h/2, 2, w/2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, grid: Grid) -> Tensor:
    """Unpack (B, rows · columns, 4C) -> (B, C, 2 · rows, 2 · columns)."""
    patches = tokens.unflatten(1, grid).unflatten(-1, (-1, PATCH, PATCH))  # (B, rows, columns, C, 2, 2)
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def unpack_channels_last(tokens: Tensor, grid: Grid) -> Tensor:
    """Unpack tokens (B, rows · columns, 4C) that have their channels last -> (B, C, 2 · rows, 2 · columns)."""
    patches = tokens.unflatten(1, grid).unflatten(-1, (PATCH, PATCH, -1))  # (B, rows, columns, 2, 2, C)
    return patches.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def grid3d_of(latents: Tensor) -> Grid3d:
    """Return the frames, rows and columns of tokens of a clip's latents (B, C, f, h, w)."""
    return latents.shape[2], *grid_of(latents)


def pack_clip(latents: Tensor) -> Tensor:
    """Pack (B, C, f, h, w) -> (B, f · h/2 · w/2, 4C), frame by frame and row by row, channels first in each token. h
    and w must be even."""
    frames = latents.transpose(1, 2)  # (B, f, C, h, w)
    return pack(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).flatten(1, 2)


def unpack_clip(tokens: Tensor, grid: Grid3d) -> Tensor:
    """Unpack (B, frames · rows · columns, 4C) -> (B, C, frames, 2 · rows, 2 · columns)."""
    frames, *rest = grid
    images = unpack(tokens.unflatten(1, (frames, -1)).flatten(0, 1), (rest[0], rest[1]))
    return images.unflatten(0, (-1, frames)).transpose(1, 2)


def clip_positions(grid: Grid3d) -> Tensor:
    """Return the frame, row and column of each token of a clip, (frames · rows · columns, 3) float64."""
    return torch.cartesian_prod(*(torch.arange(size, dtype=torch.float64) for size in grid))


def timestep_embedding(t: Tensor, channels: int = TIME_CHANNELS) -> Tensor:
    """Timesteps or guidance (B,) -> (B, channels) float32, cosines first, after scaling by 1000."""
    half = channels // 2
    rates = torch.exp(-math.log(ROPE_BASE) / half * torch.arange(half, device=t.device, dtype=torch.float32))
    angles = 1000.0 * t.float()[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def rope_widths(head_width: int) -> tuple[int, int, int]:
    """Return the rotary dimensions of a head for image index, row and column: 16, 56, 56 of 128."""
    first = head_width // 8
    return first, (head_width - first) // 2, (head_width - first) // 2


def rope_of(positions: Tensor, widths: Sequence[int], device: torch.device, base: float = ROPE_BASE) -> Rope:
    """Return the rotary table of tokens at positions (S, axes), with this many dimensions of a head for each axis."""
    halves = [torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width for width in widths]
    angles = torch.cat([positions[:, axis, None] / base**half for axis, half in enumerate(halves)], dim=-1)
    angles = angles[None, :, None]  # (1, S, 1, D/2)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def heads_of(parts: Sequence[Tensor], heads: int) -> list[Tensor]:
    """Split queries, keys and values (B, S, W) into heads (B, S, H, D)."""
    return [part.unflatten(-1, (heads, -1)) for part in parts]


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """Rotate neighbouring pairs of (B, S, H, D) float32 values by their token's position."""
    cos, sin = rope
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((cos * a - sin * b, sin * a + cos * b), dim=-1).flatten(-2)


class TanhGELU(nn.Module):
    """GELU in its approximation by tanh, x (1 + tanh u) / 2, of values of any shape."""

    for_inductor = False
    """Whether to compile it as x sigmoid(2 u), which is equal: inductor's tanh takes longer than reading and writing.
    Other backends run single operations, and that form has more of them."""

    def forward(self, x: Tensor) -> Tensor:
        if not (self.for_inductor and torch.compiler.is_compiling()):
            return F.gelu(x, approximate="tanh")
        values = x.float()
        return (values * torch.sigmoid(values * (GELU_LINEAR + GELU_CUBIC * values * values))).to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalise (B, S, W) without weights, then scale and shift it, each (B, 1, W)."""
    return (1 + scale) * F.layer_norm(x, x.shape[-1:], eps=EPS) + shift
