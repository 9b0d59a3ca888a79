"""A product of int8 matrices in one kernel with all that follows it: scales, bias, and what a LoRA adds.

PyTorch's product writes sums in int32, four bytes for each value, which another kernel reads again to scale them. Here
they stay in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, DEPTH = 128, 128, 128
"""Of the tile that a program computes, and values of each row at a time. With STAGES they take 96 KiB of shared memory,
which GPUs from RTX 30 on have."""
STAGES, WARPS = 3, 4
GROUP = 8
"""Tiles below each other that are computed together, as they share weights."""


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    row_scale,
    scale,
    bias,
    low,
    high,
    y,
    m,
    n,
    k,
    rank,
    x_stride,
    weight_stride,
    low_stride,
    high_row_stride,
    high_stride,
    y_stride,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    RANK: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    across, down = tl.cdiv(n, COLUMNS), tl.cdiv(m, ROWS)
    group = tl.program_id(0) // (GROUP * across)
    place = tl.program_id(0) % (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    row = (group * GROUP + place % height) * ROWS + tl.arange(0, ROWS)
    column = place // height * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    # rows and columns beyond the matrices repeat others, and are not written
    left_at = x + (row % m).to(tl.int64)[:, None] * x_stride + depth[None, :]
    right_at = weight + (column % n).to(tl.int64)[None, :] * weight_stride + depth[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    for begin in range(0, k, DEPTH):
        if EVEN:
            left, right = tl.load(left_at), tl.load(right_at)
        else:
            inside = begin + depth < k
            left = tl.load(left_at, mask=inside[None, :], other=0)
            right = tl.load(right_at, mask=inside[:, None], other=0)
        sums = tl.dot(left, right, sums, out_dtype=tl.int32)
        left_at += DEPTH
        right_at += DEPTH
    in_rows, in_columns = row < m, column < n
    values = sums.to(tl.float32) * tl.load(row_scale + row, mask=in_rows, other=0.0)[:, None]
    if SCALED:
        values *= tl.load(scale + column, mask=in_columns, other=0.0)[None, :]
    if BIASED:
        values += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None]
    if RANK:
        r = tl.arange(0, RANK)
        in_rank = r < rank
        left = tl.load(low + at * low_stride + r[None, :], mask=in_rows[:, None] & in_rank[None, :], other=0.0)
        high_at = high + column.to(tl.int64)[None, :] * high_row_stride + r[:, None] * high_stride
        right = tl.load(high_at, mask=in_columns[None, :] & in_rank[:, None], other=0.0)
        values += tl.dot(left, right)
    place = y + at * y_stride + column[None, :]
    tl.store(place, values.to(y.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


def scaled_product(
    rows: Tensor,
    row_scale: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return (rows weight') row_scale scale' + bias + low high', computed in float32 and rounded once: (M, N) `dtype`.

    rows (M, K) and weight (N, K) int8, row_scale (M, 1) and scale (N, 1) float32, bias (N,), low (M, r) and high (N, r)
    in 16 bits.
    """
    (m, k), n = rows.shape, len(weight)
    y = torch.empty(m, n, dtype=dtype, device=rows.device)
    rank = 0 if low is None else low.shape[1]
    _product[(triton.cdiv(m, ROWS) * triton.cdiv(n, COLUMNS),)](
        *(rows, weight, row_scale, scale, bias, low, high, y, m, n, k, rank, rows.stride(0), weight.stride(0)),
        0 if low is None else low.stride(0),
        *((0, 0) if high is None else high.stride()),
        y.stride(0),
        SCALED=scale is not None,
        BIASED=bias is not None,
        RANK=max(16, triton.next_power_of_2(rank)) if rank else 0,
        EVEN=k % DEPTH == 0,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        GROUP=GROUP,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return y
