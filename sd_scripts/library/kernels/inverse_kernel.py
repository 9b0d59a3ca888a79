"""Gauss-Jordan elimination without exchanges of rows, one program for each small matrix."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 64
"""Rows of a matrix, which is in the registers of a program."""


@triton.jit
def _invert(blocks, inverses, n, N: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    inside = (row < n) & (column < n)
    place = tl.program_id(0).to(tl.int64) * n * n + row * n + column
    a = tl.load(blocks + place, mask=inside, other=0.0)
    for k in range(0, n):
        pivot_row = tl.sum(tl.where(row == k, a, 0.0), axis=0)[None, :]
        pivot_column = tl.sum(tl.where(column == k, a, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.where(column == k, pivot_row, 0.0), axis=1)[:, None]
        scaled = tl.where(column == k, 1.0, pivot_row) / pivot
        rest = tl.where(column == k, 0.0, a) - pivot_column * scaled
        a = tl.where(row == k, scaled, rest)
    tl.store(inverses + place, a, mask=inside)


def inverse(blocks: Tensor) -> Tensor:
    """Return the inverses of contiguous float32 `blocks`, (..., n, n)."""
    n, inverses = blocks.shape[-1], torch.empty_like(blocks)
    padded = max(16, triton.next_power_of_2(n))
    with torch.cuda.device(blocks.device):
        _invert[(blocks.numel() // (n * n),)](blocks, inverses, n, N=padded, num_warps=1 if padded <= 32 else 4)
    return inverses
