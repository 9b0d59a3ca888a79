"""AdamW8bit on the GPU: one launch for all weights of the same dtypes, one pass over memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from sd_scripts.library.optim import blockwise
from sd_scripts.library.optim.blockwise import BLOCK, levels, starts, thresholds
from sd_scripts.library.optim.rounding_adamw import Hyperparams, ParamUpdate
from sd_scripts.library.optim.rounding_kernels import LANES, ROUNDS, VECTOR, Part, Tables, pointer, stochastic

WIDE = tl.constexpr(BLOCK)
TALL = tl.constexpr(2)
"""Blocks that a program handles together; with PIECES of them it handles a chunk of 2 * LANES values."""
PIECES = tl.constexpr(2 * LANES.value // (2 * BLOCK))
ZERO = tl.constexpr(127)
"""The code of 0 with signed levels. There are as many negative ones."""
CELL_BITS, CELLS = tl.constexpr(blockwise.CELL_BITS), tl.constexpr(blockwise.CELLS)
FIRST_EXPONENT = tl.constexpr(blockwise.FIRST_EXPONENT)
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
WARPS = 2
"""A warp handles a whole block with vectorized accesses, so that its scale needs no other warp."""


@triton.jit
def _moments(codes, scale, of_levels, at, inside, zero: tl.constexpr):  # type: ignore[no-untyped-def]
    """Dequantize blocks; 0 outside."""
    code = tl.load(codes + at, mask=inside, other=zero).to(tl.int32)
    return tl.load(of_levels + code) * scale


@triton.jit
def _quantize(value, scale, cells, limits):  # type: ignore[no-untyped-def]
    """Return the codes of the levels nearest to value / scale. The first bits of the quotient name its cell, whose one
    threshold decides."""
    inverse = tl.minimum(
        1.0 / tl.where(scale != 0.0, scale, 1.0), LARGEST
    )  # else 0 times infinity, if scale is subnormal
    scaled = value * inverse[:, None]
    bits = scaled.to(tl.int32, bitcast=True)
    cell = ((bits & 0x7FFFFFFF) >> (23 - CELL_BITS)) - (FIRST_EXPONENT << CELL_BITS)
    cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1) + tl.where(bits < 0, CELLS, 0)
    start = tl.load(cells + cell).to(tl.int32)
    return (start + (scaled > tl.load(limits + start)).to(tl.int32)).to(tl.uint8)


@triton.jit(do_not_specialize=["seed"])
def _update(  # type: ignore[no-untyped-def]
    table,
    chunks,
    step_at,
    factors_at,
    rate,
    rate_at,
    factor_at,
    beta1,
    rest1,
    beta2,
    rest2,
    eps,
    decay,
    seed,
    first_levels,
    first_cells,
    first_limits,
    second_levels,
    second_cells,
    second_limits,
    weight_type: tl.constexpr,
    grad_type: tl.constexpr,
    copy_type: tl.constexpr,
    aligned: tl.constexpr,
    columns: tl.constexpr,
):
    """As rounding_kernels' kernel, with the levels of each moment, its cells and the thresholds between levels."""
    chunk = tl.load(chunks + tl.program_id(0))
    row = table + (chunk >> 32) * columns
    chunk = chunk & 0xFFFFFFFF
    begin = chunk * (2 * LANES)
    left = tl.minimum(tl.load(row + 5) - begin, 2 * LANES).to(tl.int32)
    if aligned:
        left = tl.multiple_of(left, VECTOR)
    weights = pointer(row, 0, weight_type, aligned) + begin
    grads = pointer(row, 1, grad_type, aligned) + begin
    firsts = pointer(row, 2, tl.uint8, aligned) + begin
    seconds = pointer(row, 3, tl.uint8, aligned) + begin
    first_scales = pointer(row, 7, tl.float32, False) + chunk * (2 * LANES // WIDE)
    second_scales = pointer(row, 8, tl.float32, False) + chunk * (2 * LANES // WIDE)
    if rate_at is not None:
        rate = tl.load(rate_at)
    step = tl.load(step_at)
    second_factor = tl.load(factors_at + 1)
    step_size = rate * tl.load(factors_at)
    keep = 1.0 - rate * decay

    block = tl.arange(0, TALL)
    lane = block[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    if weight_type != tl.float32:
        number = tl.load(row + 6).to(tl.int32)
        draw = (chunk * (TALL * WIDE)).to(tl.int32) + lane
        bits0, bits1, bits2, bits3 = tl.philox(seed, draw, number, step, 0, ROUNDS)
    for piece in tl.static_range(PIECES):
        at = piece * (TALL * WIDE) + lane
        inside = at < left
        scale_at = piece * TALL + block
        has_scale = scale_at * WIDE < left
        grad = tl.load(grads + at, mask=inside, other=0.0).to(tl.float32)
        if factor_at is not None:
            factor = tl.load(factor_at)
            grad = tl.where(factor > 0.0, grad * factor, 0.0)
        weight = tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
        first_scale = tl.load(first_scales + scale_at, mask=has_scale, other=0.0)
        second_scale = tl.load(second_scales + scale_at, mask=has_scale, other=0.0)
        first = _moments(firsts, first_scale[:, None], first_levels, at, inside, ZERO)
        second = _moments(seconds, second_scale[:, None], second_levels, at, inside, 0)
        first += rest1 * (grad - first)
        second = beta2 * second + rest2 * grad * grad
        weight = weight * keep - step_size * first / (tl.sqrt(second) * second_factor + eps)
        if copy_type is not None:
            tl.store(pointer(row, 4, copy_type, aligned) + begin + at, weight.to(copy_type), mask=inside)
        if weight_type != tl.float32:
            bits = bits0 if piece == 0 else (bits1 if piece == 1 else (bits2 if piece == 2 else bits3))
            weight = stochastic(weight, bits, weight_type)
        tl.store(weights + at, weight, mask=inside)
        first_scale = tl.max(tl.abs(first), 1)
        second_scale = tl.max(second, 1)
        tl.store(first_scales + scale_at, first_scale, mask=has_scale)
        tl.store(second_scales + scale_at, second_scale, mask=has_scale)
        tl.store(firsts + at, _quantize(first, first_scale, first_cells, first_limits), mask=inside)
        tl.store(seconds + at, _quantize(second, second_scale, second_cells, second_limits), mask=inside)


@dataclass(kw_only=True)
class _Part8bit(Part):
    """The weights of one kernel launch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, second = (levels(self.table.device, signed=signed) for signed in (True, False))
        self._maps = (*_map(first), *_map(second))

    def update(self, rates: Hyperparams) -> None:
        with torch.cuda.device(self.table.device):
            _update[(len(self.chunks),)](*self.inputs(rates), *self._maps, **self.constants(), num_warps=WARPS)


def _map(of_levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the levels, their cells, and the thresholds with an endless one at the end."""
    return of_levels, starts(of_levels), F.pad(thresholds(of_levels), (0, 1), value=float("inf"))


class Tables8bit(Tables):
    """Tables of weights with moments in 8 bits."""

    def __init__(self, jobs: Iterable[ParamUpdate]):
        super().__init__(jobs, _Part8bit)
