"""Pack latents into FLUX.1's tokens of 2x2 latents each, predict, and unpack."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

PATCH = 2


def grid_of(latents: Tensor) -> tuple[int, int]:
    """Return the rows and columns of tokens of latents (B, 16, h, w)."""
    return latents.shape[-2] // PATCH, latents.shape[-1] // PATCH


def pack(latents: Tensor) -> Tensor:
    """Pack (B, 16, h, w) -> (B, h/2 · w/2, 64), row by row, channels first in each token. h and w must be even."""
    patches = latents.unflatten(-1, (-1, PATCH)).unflatten(-3, (-1, PATCH))  # (B, 16, h/2, 2, w/2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Unpack (B, rows · columns, 64) -> (B, 16, 2 · rows, 2 · columns)."""
    patches = tokens.unflatten(1, grid).unflatten(-1, (-1, PATCH, PATCH))  # (B, rows, columns, 16, 2, 2)
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: Tensor | None,
    *,
    masked: bool,
    controls: Sequence[Tensor] = (),
) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, guidance (B,) or None for
    schnell; `masked`: attention ignores the padding of the text; `controls`: latents of the control images, each
    (B, 16, h', w').
    """
    images = (noisy, *controls)
    mask = text["t5_attn_mask"] if masked else None
    flux: Any = transformer
    tokens = torch.cat([pack(image) for image in images], dim=1)
    grid, *others = (grid_of(image) for image in images)
    tokens = flux(tokens, text["t5_out"], text["l_pooled"], timesteps, guidance, grid, mask, tuple(others))
    return unpack(tokens, grid).float()
