"""Adafactor on the GPU, in few passes over memory and without float32 copies of half-precision weights.

A matrix takes four launches: sums of squares by row and column, the new means, the size of the update, which is
clipped, and the update. Many small matrices, as in the weight of a convolution, take two, a vector one. Sums are added
in a fixed order, so that a run repeats bit for bit.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sd_scripts.library.optim.adafactor import COLUMNS, ROWS, WHOLE, Hyperparams
from sd_scripts.library.optim.rounding_kernels import ROUNDS, stochastic
from sd_scripts.library.optim.stochastic_rounding import Key, same_layout

TALL, WIDE = tl.constexpr(16), tl.constexpr(256)
"""Rows of a program, and the columns that it looks at together."""
PARTS = tl.constexpr(32)
"""Sums of programs that are added together."""
LANES = tl.constexpr(1024)
VALUES = 8192
"""Values of a program that handles many small matrices, counted in powers of two."""
LARGEST = 64
"""Values of a matrix that is small."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _total(parts, count):  # type: ignore[no-untyped-def]
    """Add `count` sums."""
    lane = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for begin in range(0, count, LANES):
        total += tl.load(parts + begin + lane, mask=begin + lane < count, other=0.0)
    return tl.sum(total)


@triton.jit
def _write(weight, at, inside, update, factor, keep, seed, step, number):  # type: ignore[no-untyped-def]
    """Keep so much of the weights at these places, and subtract `factor * update`."""
    kind: tl.constexpr = weight.dtype.element_ty
    value = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) * keep - factor * update
    if kind != tl.float32:
        bits, _, _, _ = tl.philox(seed, at, number, step, 0, ROUNDS)
        value = stochastic(value, bits, kind)
    tl.store(weight + at, value, mask=inside)


@triton.jit
def _factors(squares, size, lr, scale, clip, decay):  # type: ignore[no-untyped-def]
    """Return the factor of an update of `size` values whose squares have this sum, and the weight's factor.
    `scale` points to a factor of the learning rate, or is None."""
    if scale is not None:
        lr *= tl.load(scale)
    return lr / tl.maximum(tl.sqrt(squares / size) / clip, 1.0), 1.0 - decay * lr


@triton.jit
def _sums(grad, row_sums, column_parts, rows, columns):  # type: ignore[no-untyped-def]
    """Sum the squares of TALL rows, by row, and of their columns."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    sums = tl.zeros([TALL], tl.float32)
    for begin in range(0, columns, WIDE):
        column = begin + tl.arange(0, WIDE)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        value = tl.load(grad + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        sums += tl.sum(value * value, 1)
        parts = column_parts + tl.program_id(0) * columns + column
        tl.store(parts, tl.sum(value * value, 0), mask=column < columns)
    tl.store(row_sums + row, sums, mask=row < rows)


@triton.jit(do_not_specialize=["parts"])
def _means(row_sums, column_parts, row_means, column_means, mean, rows, columns, parts, rest, eps):  # type: ignore[no-untyped-def]
    """Update the means of all rows, and their mean, in the first program, and of WIDE columns in each other one."""
    if tl.program_id(0) == 0:
        lane = tl.arange(0, LANES)
        total = tl.zeros([LANES], tl.float32)
        for begin in range(0, rows, LANES):
            row = begin + lane
            old = tl.load(row_means + row, mask=row < rows, other=0.0)
            new = tl.load(row_sums + row, mask=row < rows, other=0.0) / columns + eps
            kept = old + rest * (new - old)
            tl.store(row_means + row, kept, mask=row < rows)
            total += tl.where(row < rows, kept, 0.0)
        tl.store(mean, tl.sum(total) / rows)
    else:
        column = (tl.program_id(0) - 1) * WIDE + tl.arange(0, WIDE)
        sums = tl.zeros([WIDE], tl.float32)
        for begin in range(0, parts, PARTS):
            part = begin + tl.arange(0, PARTS)
            inside = (part < parts)[:, None] & (column < columns)[None, :]
            at = part[:, None] * columns + column[None, :]
            sums += tl.sum(tl.load(column_parts + at, mask=inside, other=0.0), 0)
        old = tl.load(column_means + column, mask=column < columns, other=0.0)
        kept = old + rest * (sums / rows + eps - old)
        tl.store(column_means + column, kept, mask=column < columns)


@triton.jit
def _scaled(grad, row_means, column_means, mean, row, column, rows, columns):  # type: ignore[no-untyped-def]
    """Return gradients over the roots of their second moments, and where the matrix has them."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(grad + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    by_row = tl.rsqrt(tl.load(row_means + row, mask=row < rows, other=1.0) / mean)
    by_column = tl.rsqrt(tl.load(column_means + column, mask=column < columns, other=1.0))
    return by_row[:, None] * by_column[None, :] * value, inside


@triton.jit
def _size(grad, row_means, column_means, mean_at, sums, rows, columns):  # type: ignore[no-untyped-def]
    """Sum the squared updates of TALL rows."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    mean = tl.load(mean_at)
    total = tl.zeros([TALL], tl.float32)
    for begin in range(0, columns, WIDE):
        column = begin + tl.arange(0, WIDE)
        update, _ = _scaled(grad, row_means, column_means, mean, row, column, rows, columns)
        total += tl.sum(update * update, 1)
    tl.store(sums + tl.program_id(0), tl.sum(total))


@triton.jit(do_not_specialize=["seed", "step", "number"])
def _matrix(  # type: ignore[no-untyped-def]
    weight,
    grad,
    row_means,
    column_means,
    mean_at,
    sums,
    rows,
    columns,
    size,
    lr,
    scale,
    clip,
    decay,
    seed,
    step,
    number,
):
    """Update TALL rows of a matrix of `size` values."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    mean = tl.load(mean_at)
    factor, keep = _factors(_total(sums, tl.num_programs(0)), size, lr, scale, clip, decay)
    for begin in range(0, columns, WIDE):
        column = begin + tl.arange(0, WIDE)
        update, inside = _scaled(grad, row_means, column_means, mean, row, column, rows, columns)
        at = row[:, None] * columns + column[None, :]
        _write(weight, at, inside, update, factor, keep, seed, step, number)


@triton.jit(do_not_specialize=["count", "seed", "step", "number"])
def _small(  # type: ignore[no-untyped-def]
    weight,
    grad,
    row_means,
    column_means,
    sums,
    count,
    inner,
    outer_stride,
    stride,
    row_stride,
    column_stride,
    rest,
    eps,
    size,
    lr,
    scale,
    clip,
    decay,
    seed,
    step,
    number,
    rows: tl.constexpr,
    columns: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    many: tl.constexpr,
    writes: tl.constexpr,
):
    """Of `many` matrices, update the means and sum the squared updates, or, with `writes`, update the weights.

    Matrix n begins at (n // inner) * outer_stride + (n % inner) * stride; tall and wide: rows and columns, rounded up
    to powers of two."""
    which = tl.program_id(0) * many + tl.arange(0, many)
    row, column = tl.arange(0, tall), tl.arange(0, wide)
    there = which < count
    has_row, has_column = there[:, None] & (row < rows)[None, :], there[:, None] & (column < columns)[None, :]
    inside = has_row[:, :, None] & has_column[:, None, :]
    begin = (which // inner) * outer_stride + (which % inner) * stride
    at = begin[:, None, None] + (row * row_stride)[None, :, None] + (column * column_stride)[None, None, :]
    value = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    rows_at = row_means + which[:, None] * rows + row[None, :]
    columns_at = column_means + which[:, None] * columns + column[None, :]
    by_row = tl.load(rows_at, mask=has_row, other=1.0)
    by_column = tl.load(columns_at, mask=has_column, other=1.0)
    if not writes:
        squares = tl.where(inside, value * value + eps, 0.0)
        by_row += rest * (tl.sum(squares, 2) / columns - by_row)
        by_column += rest * (tl.sum(squares, 1) / rows - by_column)
        tl.store(rows_at, by_row, mask=has_row)
        tl.store(columns_at, by_column, mask=has_column)
    mean = tl.sum(tl.where(has_row, by_row, 0.0), 1) / rows
    factors = tl.rsqrt(by_row / mean[:, None])[:, :, None] * tl.rsqrt(by_column)[:, None, :]
    update = tl.where(inside, factors * value, 0.0)
    if writes:
        factor, keep = _factors(_total(sums, tl.num_programs(0)), size, lr, scale, clip, decay)
        _write(weight, at, inside, update, factor, keep, seed, step, number)
    else:
        tl.store(sums + tl.program_id(0), tl.sum(tl.sum(tl.sum(update * update, 2), 1), 0))


@triton.jit(do_not_specialize=["count", "seed", "step", "number"])
def _vector(weight, grad, means, count, rest, eps, size, lr, scale, clip, decay, seed, step, number):  # type: ignore[no-untyped-def]
    """Update all `count` values of a vector in one program; `size` is the same number in float32."""
    lane = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for begin in range(0, count, LANES):
        at = begin + lane
        value = tl.load(grad + at, mask=at < count, other=0.0).to(tl.float32)
        old = tl.load(means + at, mask=at < count, other=1.0)
        kept = old + rest * (value * value + eps - old)
        tl.store(means + at, kept, mask=at < count)
        update = tl.where(at < count, tl.rsqrt(kept) * value, 0.0)
        total += update * update
    factor, keep = _factors(tl.sum(total), size, lr, scale, clip, decay)
    for begin in range(0, count, LANES):
        at = begin + lane
        value = tl.load(grad + at, mask=at < count, other=0.0).to(tl.float32)
        update = tl.rsqrt(tl.load(means + at, mask=at < count, other=1.0)) * value
        _write(weight, at, at < count, update, factor, keep, seed, step, number)


def fits(weight: Tensor) -> bool:
    """Return whether the kernels can update a weight: it is a dense vector or matrix, or consists of small matrices."""
    grad = weight.grad
    known = weight.dtype in _TYPES and grad is not None and grad.dtype in _TYPES
    if not known or not weight.numel() or not same_layout(weight, grad):
        return False
    return weight.ndim <= 2 or prod(weight.shape[-2:]) <= LARGEST


def update(weight: Tensor, state: Mapping[str, Tensor], hyper: Hyperparams, key: Key) -> None:
    """Update a weight that fits by its gradient, and its means."""
    grad = weight.grad
    assert grad is not None
    rates = (float(hyper.lr), hyper.scale, float(hyper.clip_threshold), float(hyper.weight_decay))
    step = (float(weight.numel()), *rates, key.seed, key.step, key.number)
    with torch.cuda.device(weight.device):
        if weight.ndim < 2:
            _vector[(1,)](weight, grad, state[WHOLE], weight.numel(), hyper.rest, hyper.eps, *step)
        elif weight.ndim == 2:
            _update_matrix(weight, grad, state[ROWS], state[COLUMNS], hyper, step)
        else:
            _update_small(weight, grad, state[ROWS], state[COLUMNS], hyper, step)


def _update_matrix(
    weight: Tensor, grad: Tensor, row_means: Tensor, column_means: Tensor, hyper: Hyperparams, step: tuple[Any, ...]
) -> None:
    rows, columns = weight.shape
    programs = -(-rows // TALL.value)
    scratch = torch.empty(rows + programs * (columns + 1) + 1, device=weight.device)
    row_sums, column_parts, sums, mean = scratch.split((rows, programs * columns, programs, 1))
    means = (row_means, column_means)
    _sums[(programs,)](grad, row_sums, column_parts, rows, columns)
    grid = (1 - (-columns // WIDE.value),)
    _means[grid](row_sums, column_parts, *means, mean, rows, columns, programs, hyper.rest, hyper.eps)
    _size[(programs,)](grad, *means, mean, sums, rows, columns)
    _matrix[(programs,)](weight, grad, *means, mean, sums, rows, columns, *step)


def _update_small(
    weight: Tensor, grad: Tensor, row_means: Tensor, column_means: Tensor, hyper: Hyperparams, step: tuple[Any, ...]
) -> None:
    *_, rows, columns = weight.shape
    count = weight.numel() // (rows * columns)
    dense = (count, 0, rows * columns, columns, 1)
    strides = dense if weight.is_contiguous() else (weight.shape[1], *weight.stride())  # of channels last
    tall, wide = triton.next_power_of_2(rows), triton.next_power_of_2(columns)
    many = VALUES // (tall * wide)
    programs = -(-count // many)
    sums = torch.empty(programs, device=weight.device)
    for writes in (False, True):
        _small[(programs,)](
            *(weight, grad, row_means, column_means, sums, count, *strides, hyper.rest, hyper.eps, *step),
            **{"rows": rows, "columns": columns, "tall": tall, "wide": wide, "many": many, "writes": writes},
        )
