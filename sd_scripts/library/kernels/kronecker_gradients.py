"""The gradients of a LoKr that computes in its base product, on the GPU, in two launches.

The first sums over parts of the rows; the update's own matrix (p·c, q·r) has its gradient only in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_RANK = 256
"""Of q·r, both rounded up to powers of 2, which is the width of a program's sums."""
CHUNK = tl.constexpr(256)


@triton.jit
def _down(  # type: ignore[no-untyped-def]
    low,
    x,
    result,
    column,
    begin,
    end,
    d,
    rank,
    low_stride,
    x_stride,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """result (r, d) = low' x over rows `begin` to `end`, for columns of x."""
    r, row = tl.arange(0, R), tl.arange(0, ROWS)
    sums = tl.zeros((R, COLUMNS), dtype=tl.float32)
    for start in range(begin, end, ROWS):
        at = (start + row).to(tl.int64)
        inside = (start + row) < end
        narrow = tl.load(
            low + at[None, :] * low_stride + r[:, None], mask=inside[None, :] & (r < rank)[:, None], other=0.0
        )
        wide = tl.load(
            x + at[:, None] * x_stride + column[None, :], mask=inside[:, None] & (column < d)[None, :], other=0.0
        )
        sums = tl.dot(narrow, wide, sums)
    tl.store(result + r[:, None] * d + column[None, :], sums, mask=(r < rank)[:, None] & (column < d)[None, :])


@triton.jit
def _up(  # type: ignore[no-untyped-def]
    grad,
    h,
    w1,
    up,
    up_result,
    w1_result,
    column,
    begin,
    end,
    c,
    q,
    rank,
    grad_stride,
    h_stride,
    Q: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """up_result (c, r) and w1_result (q,): what grad' h, (c, q·r), means for up (c, r) and for a row of w1."""
    k, row, r, j = tl.arange(0, Q * R), tl.arange(0, ROWS), tl.arange(0, R), tl.arange(0, Q)
    known = (k // R < q) & (k % R < rank)
    place = (k // R) * rank + k % R
    sums = tl.zeros((COLUMNS, Q * R), dtype=tl.float32)
    for start in range(begin, end, ROWS):
        at = (start + row).to(tl.int64)
        inside = (start + row) < end
        left = tl.load(
            grad + at[None, :] * grad_stride + column[:, None],
            mask=inside[None, :] & (column < c)[:, None],
            other=0.0,
        )
        right = tl.load(h + at[:, None] * h_stride + place[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        sums = tl.dot(left, right, sums)
    parts = tl.reshape(sums, (COLUMNS, Q, R))
    inside = (column < c)[:, None] & (r < rank)[None, :]
    factor = tl.load(w1 + j, mask=j < q, other=0.0).to(tl.float32)
    own = tl.load(up + column[:, None] * rank + r[None, :], mask=inside, other=0.0).to(tl.float32)
    up_sums = tl.sum(parts * factor[None, :, None], axis=1)
    w1_sums = tl.sum(tl.sum(parts * own[:, None, :], axis=2), axis=0)
    tl.store(up_result + column[:, None] * rank + r[None, :], up_sums, mask=inside)
    tl.store(w1_result + j, w1_sums, mask=j < q)


@triton.jit
def _partials(  # type: ignore[no-untyped-def]
    x,
    h,
    grad,
    low,
    w1,
    up,
    downs,
    ups,
    w1s,
    m,
    span,
    p,
    c,
    q,
    d,
    rank,
    x_stride,
    h_stride,
    grad_stride,
    low_stride,
    Q: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, j, s) makes columns of block j from span s of the rows: first down's, then up's."""
    tile, block, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = part * span
    end = tl.minimum(begin + span, m)
    tiles = tl.cdiv(d, COLUMNS)
    if tile < tiles:
        if block < q:
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            result = downs + (part * q + block) * rank * d
            left, right = low + block * rank, x + block * d
            _down(left, right, result, column, begin, end, d, rank, low_stride, x_stride, R, ROWS, COLUMNS)
    elif block < p:
        column = (tile - tiles) * COLUMNS + tl.arange(0, COLUMNS)
        up_result = ups + (part * p + block) * c * rank
        w1_result = w1s + ((part * tl.cdiv(c, COLUMNS) + tile - tiles) * p + block) * q
        _up(
            grad + block * c,
            h,
            w1 + block * q,
            up,
            up_result,
            w1_result,
            column,
            begin,
            end,
            c,
            q,
            rank,
            grad_stride,
            h_stride,
            Q,
            R,
            ROWS,
            COLUMNS,
        )


@triton.jit
def _total(parts, result, chunk, size, count):  # type: ignore[no-untyped-def]
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    sums = tl.zeros((CHUNK,), dtype=tl.float32)
    for part in range(0, count):
        sums += tl.load(parts + part * size + at, mask=at < size, other=0.0)
    tl.store(result + at, sums.to(result.dtype.element_ty), mask=at < size)


@triton.jit
def _totals(  # type: ignore[no-untyped-def]
    downs, ups, w1s, down, up, w1, down_size, up_size, w1_size, down_count, up_count, w1_count
):
    """Add up the parts of the three gradients."""
    chunk = tl.program_id(0)
    up_chunk = chunk - tl.cdiv(down_size, CHUNK)
    w1_chunk = up_chunk - tl.cdiv(up_size, CHUNK)
    if up_chunk < 0:
        _total(downs, down, chunk, down_size, down_count)
    elif w1_chunk < 0:
        _total(ups, up, up_chunk, up_size, up_count)
    else:
        _total(w1s, w1, w1_chunk, w1_size, w1_count)


def kronecker_gradients(
    x: Tensor, h: Tensor, grad: Tensor, low: Tensor, w1: Tensor, up: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of w1 (p, q), up (c, r) and down (r, d).

    x (M, q·d), h (M, q·r) = x (I x down)', grad (M, p·c), low (M, q·r) = grad (w1 x up); rows may have any stride.
    """
    (p, q), (c, rank), m, d = w1.shape, up.shape, len(x), x.shape[1] // w1.shape[1]
    columns = 64 if min(c, d) >= 640 else 32
    tiles = triton.cdiv(d, columns) + triton.cdiv(c, columns)
    spans = max(1, min(256 // (tiles * max(p, q)), triton.cdiv(m, 512)))
    sizes, counts = (rank * d, c * rank, p * q), (spans * q, spans * p, spans * triton.cdiv(c, columns))
    lengths = [size * count for size, count in zip(sizes, counts, strict=True)]
    parts = torch.empty(sum(lengths), dtype=torch.float32, device=x.device).split(lengths)
    down, up_grad, w1_grad = x.new_empty(rank, d), x.new_empty(c, rank), x.new_empty(p, q)
    _partials[(tiles, max(p, q), spans)](
        *(x, h, grad, low, w1, up, *parts, m, triton.cdiv(m, spans), p, c, q, d, rank),
        *(x.stride(0), h.stride(0), grad.stride(0), low.stride(0)),
        Q=triton.next_power_of_2(q),
        R=max(16, triton.next_power_of_2(rank)),
        ROWS=64,
        COLUMNS=columns,
        num_warps=columns // 8,
        num_stages=2,
    )
    chunks = sum(triton.cdiv(size, CHUNK.value) for size in sizes)
    _totals[(chunks,)](*parts, down, up_grad, w1_grad, *sizes, *counts)
    return w1_grad, up_grad, down


def fits(q: int, rank: int) -> bool:
    """Return whether the sums of a program have room for q·rank columns."""
    return triton.next_power_of_2(q) * max(16, triton.next_power_of_2(rank)) <= LARGEST_RANK
