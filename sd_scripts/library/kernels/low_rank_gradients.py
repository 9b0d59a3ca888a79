"""The gradients of a LoRA's two matrices on the GPU, in one launch: products of tall, narrow matrices."""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

Tile = tuple[int, int]
"""Rows that a program multiplies at a time, and columns of its result."""
TILE: Tile = 128, 32
WIDE_TILE: Tile = 64, 64
"""For layers that are wide enough to keep a large GPU busy with it: 44 instead of 55 us for 15,360 + 3,072 columns."""
ENOUGH_PROGRAMS = 380
"""Programs of the narrower tile from which on the wider one is faster, as measured on an H200."""


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    left,
    right,
    result,
    begin,
    m,
    width,
    rank,
    left_stride,
    right_stride,
    row_stride,
    column_stride,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """result[r, c] = sum over rows of left[row, r] right[row, c] for the columns from `begin`."""
    column, r, row = begin + tl.arange(0, COLUMNS), tl.arange(0, R), tl.arange(0, ROWS)
    sums = tl.zeros((R, COLUMNS), dtype=tl.float32)
    for start in range(0, m, ROWS):
        at = (start + row).to(tl.int64)
        inside = (start + row) < m
        narrow = tl.load(
            left + at[None, :] * left_stride + r[:, None], mask=inside[None, :] & (r < rank)[:, None], other=0.0
        )
        wide = tl.load(
            right + at[:, None] * right_stride + column[None, :],
            mask=inside[:, None] & (column < width)[None, :],
            other=0.0,
        )
        sums = tl.dot(narrow, wide, sums)
    place = result + r.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    tl.store(place, sums.to(result.dtype.element_ty), mask=(r < rank)[:, None] & (column < width)[None, :])


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
    x,
    h,
    grad,
    low,
    downs,
    ups,
    m,
    width,
    out,
    rank,
    x_stride,
    h_stride,
    grad_stride,
    low_stride,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, n) makes columns of the gradients of down n and up n of layers with the same input."""
    n = tl.program_id(1)
    begin = tl.program_id(0) * COLUMNS
    tiles = tl.cdiv(width, COLUMNS) * COLUMNS
    if begin < tiles:
        _product(
            low + n * rank,
            x,
            downs + n * rank * width,
            begin,
            m,
            width,
            rank,
            low_stride,
            x_stride,
            width,
            1,
            R,
            ROWS,
            COLUMNS,
        )
    else:
        _product(
            h + n * rank,
            grad + n * out,
            ups + n * out * rank,
            begin - tiles,
            m,
            out,
            rank,
            h_stride,
            grad_stride,
            1,
            rank,
            R,
            ROWS,
            COLUMNS,
        )


def tile_of(width: int, out: int, count: int, padded_rank: int) -> Tile:
    """Return the tile for `count` layers of these inputs and outputs."""
    programs = (triton.cdiv(width, TILE[1]) + triton.cdiv(out, TILE[1])) * count
    return WIDE_TILE if programs >= ENOUGH_PROGRAMS and padded_rank <= 32 else TILE


@triton_op("sd_scripts::low_rank_gradients", mutates_args={})
def low_rank_gradients(x: Tensor, h: Tensor, grad: Tensor, low: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of the downs (n r, in) and of the ups (n out, r) of `count` layers with the input x (M, in).

    h (M, n r) = x A', grad (M, n out), low (M, n r) = grad B; rows may have any stride.
    """
    rank, out, width = h.shape[1] // count, grad.shape[1] // count, x.shape[1]
    padded_rank = max(16, triton.next_power_of_2(rank))
    downs, ups = x.new_empty(count * rank, width), x.new_empty(count * out, rank)
    rows, columns = tile_of(width, out, count, padded_rank)
    grid = (triton.cdiv(width, columns) + triton.cdiv(out, columns), count)
    wrap_triton(_gradients)[grid](
        *(x, h, grad, low, downs, ups, len(x), width, out, rank),
        *(x.stride(0), h.stride(0), grad.stride(0), low.stride(0)),
        R=padded_rank,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=4,
        num_stages=4 if padded_rank <= 32 else 3,  # wider tiles would not fit the shared memory of smaller GPUs
    )
    return downs, ups
