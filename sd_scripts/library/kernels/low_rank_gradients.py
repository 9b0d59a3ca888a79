"""The gradients of a LoRA's two matrices on the GPU, in one launch: products of tall, narrow matrices.

With trained norms (DoRA) those of the factors of its outputs are made in the same launch, which reads the output's
gradient anyway.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

Tile = tuple[int, int]
"""Rows that a program multiplies at once, and columns of its result."""
TILE: Tile = 128, 32
WIDE_TILE: Tile = 64, 64
"""For layers that are wide enough to keep a large GPU busy with it: 44 instead of 55 us for 15,360 + 3,072 columns."""
ENOUGH_PROGRAMS = 380
"""Programs of the narrower tile from which on the wider one is faster, as measured on an H200."""
LARGEST_RANK = 128


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
    y,
    bias,
    gain,
    gain_result,
    y_stride,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GAINED: tl.constexpr,
    BIASED: tl.constexpr,
):
    """result[r, c] = sum over rows of left[row, r] right[row, c] for the columns from `begin`.

    If GAINED, y = gain z + bias and right = gain * the gradient of y: also gain_result[c], the gradient of gain.
    """
    column, r, row = begin + tl.arange(0, COLUMNS), tl.arange(0, R), tl.arange(0, ROWS)
    sums = tl.zeros((R, COLUMNS), dtype=tl.float32)
    if GAINED:
        products = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)  # summing over rows each time would synchronize
        offset = tl.zeros((COLUMNS,), dtype=tl.float32)
        if BIASED:
            offset += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
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
        if GAINED:
            known = inside[:, None] & (column < width)[None, :]
            value = tl.load(y + at[:, None] * y_stride + column[None, :], mask=known, other=0.0).to(tl.float32)
            products += wide.to(tl.float32) * (value - offset[None, :])  # other rows of wide are 0
    place = result + r.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    tl.store(place, sums.to(result.dtype.element_ty), mask=(r < rank)[:, None] & (column < width)[None, :])
    if GAINED:
        own = tl.load(gain + column, mask=column < width, other=1.0)
        sums_of_gain = tl.sum(products, axis=0)
        tl.store(gain_result + column, tl.where(own == 0, 0.0, sums_of_gain / (own * own)), mask=column < width)


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
    x,
    h,
    grad,
    low,
    y,
    bias,
    gain,
    downs,
    ups,
    gains,
    m,
    width,
    out,
    rank,
    x_stride,
    h_stride,
    grad_stride,
    low_stride,
    y_stride,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GAINED: tl.constexpr,
    BIASED: tl.constexpr,
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
            y,
            bias,
            gain,
            gains,
            y_stride,
            R,
            ROWS,
            COLUMNS,
            False,
            False,
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
            y + n * out,
            bias + n * out,
            gain + n * out,
            gains + n * out,
            y_stride,
            R,
            ROWS,
            COLUMNS,
            GAINED,
            BIASED,
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
        *(x, h, grad, low, x, x, x, downs, ups, ups, len(x), width, out, rank),
        *(x.stride(0), h.stride(0), grad.stride(0), low.stride(0), 0),
        R=padded_rank,
        ROWS=rows,
        COLUMNS=columns,
        GAINED=False,
        BIASED=False,
        num_warps=4,
        num_stages=4 if padded_rank <= 32 else 3,  # wider tiles would not fit the shared memory of smaller GPUs
    )
    return downs, ups


@triton_op("sd_scripts::gained_gradients", mutates_args={})
def gained_gradients(
    x: Tensor, h: Tensor, grad: Tensor, low: Tensor, y: Tensor, gain: Tensor, bias: Tensor, biased: bool, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return also the gradient of gain (n out,), float32, for y (M, n out) = gain z + bias, or gain z if not `biased`.

    grad is the gradient of z, gain * that of y.
    """
    rank, out, width = h.shape[1] // count, grad.shape[1] // count, x.shape[1]
    downs, ups, gains = x.new_empty(count * rank, width), x.new_empty(count * out, rank), gain.new_empty(count * out)
    rows, columns = TILE
    grid = (triton.cdiv(width, columns) + triton.cdiv(out, columns), count)
    wrap_triton(_gradients)[grid](
        *(x, h, grad, low, y, bias, gain, downs, ups, gains, len(x), width, out, rank),
        *(x.stride(0), h.stride(0), grad.stride(0), low.stride(0), y.stride(0)),
        R=max(16, triton.next_power_of_2(rank)),
        ROWS=rows,
        COLUMNS=columns,
        GAINED=True,
        BIASED=biased,
        num_warps=4,
        num_stages=3,
    )
    return downs, ups, gains
