"""RoundingAdamW on the GPU: one launch for all weights that are alike, one pass over memory."""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from sd_scripts.library.rounding_adamw import Job, Key, Rates

LANES = tl.constexpr(1024)
"""Of a program, which does so many values twice: one draw of Philox has bits for two values."""
ROUNDS = tl.constexpr(7)
"""Of Philox, the fewest that pass all tests of randomness (Salmon et al. 2011, table 2)."""
VECTOR = tl.constexpr(16)
"""Bytes that memory is read and written in at once, where all addresses and sizes can be divided by them."""
SIZE, COLUMNS = 5, 10
"""Of a row: weight, grad, exp_avg, exp_avg_sq and copy as addresses, size, step, number, two factors as float64."""

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _by_chance(value, bits, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 as one of its neighbours in kind; of `bits` (uint32) the lower 16 decide."""
    if kind == tl.bfloat16:
        moved = (value.to(tl.uint32, bitcast=True) + (bits & 0xFFFF)) & 0xFFFF0000
        value = tl.where(tl.abs(value) < float("inf"), moved.to(tl.float32, bitcast=True), value)
    elif kind == tl.float16:
        moved = (value.to(tl.uint32, bitcast=True) + (bits & 0x1FFF)) & 0xFFFFE000
        plain = (tl.abs(value) >= 0.00006103515625) & (tl.abs(value) < 65504.0)
        value = tl.where(plain, moved.to(tl.float32, bitcast=True), value)
    return value.to(kind)


@triton.jit(do_not_specialize=["seed", "step", "number", "part"])
def _round(source, target, size, seed, step, number, part):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, LANES)
    draw = tl.program_id(0) * LANES + lane
    low, high, _, _ = tl.philox(seed, draw, number, step, part, ROUNDS)
    begin = tl.program_id(0).to(tl.int64) * (2 * LANES)
    for half in tl.static_range(2):
        at = begin + half * LANES + lane
        value = tl.load(source + at, mask=at < size)
        bits = low if half == 0 else high
        tl.store(target + at, _by_chance(value, bits, target.dtype.element_ty), mask=at < size)


def round_stochastically(source: Tensor, target: Tensor, key: Key) -> None:
    """The values of both lie in the same order, without gaps."""
    if source.numel():
        with torch.cuda.device(source.device):
            _round[(triton.cdiv(source.numel(), 2 * LANES.value),)](source, target, source.numel(), *key)


@triton.jit
def _pointer(row, column: tl.constexpr, kind: tl.constexpr, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    pointer = tl.load(row + column).to(tl.pointer_type(kind))
    if aligned:
        pointer = tl.multiple_of(pointer, VECTOR)
    return pointer


@triton.jit(do_not_specialize=["seed"])
def _update(  # type: ignore[no-untyped-def]
    table,
    chunks,
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
    weight_type: tl.constexpr,
    grad_type: tl.constexpr,
    moment_type: tl.constexpr,
    copy_type: tl.constexpr,
    aligned: tl.constexpr,
    columns: tl.constexpr,
):
    """A chunk of one weight. `rest`: 1 - beta; rate_at and factor_at: where the rate lies, and what gradients are
    multiplied by, or None; copy_type: dtype of the copies, or None."""
    chunk = tl.load(chunks + tl.program_id(0))
    row = table + (chunk >> 32) * columns
    chunk = chunk & 0xFFFFFFFF
    begin = chunk * (2 * LANES)
    left = tl.minimum(tl.load(row + 5) - begin, 2 * LANES).to(tl.int32)
    if aligned:
        left = tl.multiple_of(left, VECTOR)
    weights = _pointer(row, 0, weight_type, aligned) + begin
    grads = _pointer(row, 1, grad_type, aligned) + begin
    firsts = _pointer(row, 2, moment_type, aligned) + begin
    seconds = _pointer(row, 3, moment_type, aligned) + begin
    if rate_at is not None:
        rate = tl.load(rate_at)
    step_size = rate * tl.load(row + 8).to(tl.float64, bitcast=True).to(tl.float32)
    spread = tl.load(row + 9).to(tl.float64, bitcast=True).to(tl.float32)
    keep = 1.0 - rate * decay

    lane = tl.arange(0, LANES)
    if weight_type != tl.float32:
        step = tl.load(row + 6).to(tl.int32)
        number = tl.load(row + 7).to(tl.int32)
        draw = (chunk * LANES).to(tl.int32) + lane
        bits0, bits1, bits2, bits3 = tl.philox(seed, draw, number, step, 0, ROUNDS)
    for half in tl.static_range(2):
        at = half * LANES + lane
        inside = at < left
        grad = tl.load(grads + at, mask=inside).to(tl.float32)
        if factor_at is not None:
            grad *= tl.load(factor_at)
        weight = tl.load(weights + at, mask=inside).to(tl.float32)
        first = tl.load(firsts + at, mask=inside).to(tl.float32)
        second = tl.load(seconds + at, mask=inside).to(tl.float32)
        first += rest1 * (grad - first)
        second = beta2 * second + rest2 * grad * grad
        weight = weight * keep - step_size * first / (tl.sqrt(second) * spread + eps)
        if copy_type is not None:
            tl.store(_pointer(row, 4, copy_type, aligned) + begin + at, weight.to(copy_type), mask=inside)
        if weight_type != tl.float32:
            bits = bits0 if half == 0 else bits2
            more = bits1 if half == 0 else bits3
            weight = _by_chance(weight, bits, weight_type)
            first = _by_chance(first, bits >> 16, moment_type)
            second = _by_chance(second, more, moment_type)
        tl.store(weights + at, weight, mask=inside)
        tl.store(firsts + at, first, mask=inside)
        tl.store(seconds + at, second, mask=inside)


def update(jobs: Iterable[Job], rates: Rates) -> None:
    """All weights of a group; the tensors of each have their values in the same order, without gaps."""
    alike = defaultdict(list)
    for job in jobs:
        if not job.weight.numel():
            continue
        copy = None if job.copy is None else job.copy.dtype
        alike[job.weight.device, job.weight.dtype, job.grad.dtype, copy].append(job)
    for (device, *_), group in alike.items():
        rows = _rows(group, rates.betas)
        aligned = (rows[:, : SIZE + 1] % VECTOR.value == 0).all(1)
        for rows_alike, is_aligned in ((rows[aligned], True), (rows[~aligned], False)):
            if len(rows_alike):
                chunks = _chunks(tuple(rows_alike[:, SIZE].tolist()), device)
                _launch(group[0], rates, _sent(rows_alike, device), chunks, is_aligned)


def _rows(jobs: list[Job], betas: tuple[float, float]) -> Tensor:
    """(T, COLUMNS) int64."""
    factors = {step: (1 / (1 - betas[0] ** step), (1 - betas[1] ** step) ** -0.5) for step in {j.step for j in jobs}}
    known = (
        [job.weight.data_ptr() for job in jobs],
        [job.grad.data_ptr() for job in jobs],
        [job.exp_avg.data_ptr() for job in jobs],
        [job.exp_avg_sq.data_ptr() for job in jobs],
        [0 if job.copy is None else job.copy.data_ptr() for job in jobs],
        [job.weight.numel() for job in jobs],
        [job.step for job in jobs],
        [job.number for job in jobs],
    )
    # by way of an array, since torch.tensor takes milliseconds for as many numbers as a model has
    integers = torch.frombuffer(array("q", chain.from_iterable(known)), dtype=torch.int64).view(len(known), len(jobs))
    corrections = array("d", chain.from_iterable(factors[job.step] for job in jobs))
    floats = torch.frombuffer(corrections, dtype=torch.float64).view(len(jobs), 2)
    return torch.cat([integers.t(), floats.view(torch.int64)], dim=1)


@lru_cache(maxsize=4096)
def _chunks(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """What each program works on: row << 32 | number of the chunk in its weight."""
    counts = (torch.tensor(sizes, dtype=torch.int64) + 2 * LANES.value - 1) // (2 * LANES.value)
    rows = torch.arange(len(sizes)).repeat_interleave(counts)
    within = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    return _sent(rows << 32 | within, device)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting: PyTorch keeps pinned memory from being used again before it is read."""
    return tensor.pin_memory().to(device, non_blocking=True)


def _launch(example: Job, rates: Rates, table: Tensor, chunks: Tensor, aligned: bool) -> None:
    beta1, beta2 = (float(beta) for beta in rates.betas)
    held = isinstance(rates.lr, Tensor) and rates.lr.is_cuda
    with torch.cuda.device(table.device):
        _update[(len(chunks),)](
            table,
            chunks,
            0.0 if held else float(rates.lr),
            rates.lr if held else None,
            rates.factor,
            beta1,
            1 - beta1,
            beta2,
            1 - beta2,
            float(rates.eps),
            float(rates.weight_decay),
            rates.seed,
            weight_type=_TYPES[example.weight.dtype],
            grad_type=_TYPES[example.grad.dtype],
            moment_type=_TYPES[example.exp_avg.dtype],
            copy_type=None if example.copy is None else _TYPES[example.copy.dtype],
            aligned=aligned,
            columns=COLUMNS,
        )
