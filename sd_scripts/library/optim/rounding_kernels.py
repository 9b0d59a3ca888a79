"""RoundingAdamW on the GPU: one launch for all weights of the same dtypes, one pass over memory."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sd_scripts.library.optim.rounding_adamw import Hyperparams, ParamUpdate
from sd_scripts.library.optim.stochastic_rounding import Key

LANES = tl.constexpr(1024)
"""Lanes of a program, each of which handles two values: one Philox draw has bits for two."""
ROUNDS = tl.constexpr(7)
"""Philox rounds: the fewest that pass all tests of randomness (Salmon et al. 2011, table 2)."""
VECTOR = tl.constexpr(16)
"""Bytes of a vectorized memory access, used where all addresses and sizes are multiples of it."""
SIZE, COLUMNS = 5, 9
"""A row has the addresses of weight, grad, exp_avg, exp_avg_sq and copy, then size and index, then the addresses of the
moments' scales."""

_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.uint8: tl.uint8,
}


@triton.jit
def stochastic(value, bits, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """Round float32 stochastically to `kind`, using the lower 16 of `bits` (uint32)."""
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
        tl.store(target + at, stochastic(value, bits, target.dtype.element_ty), mask=at < size)


def round_stochastically(source: Tensor, target: Tensor, key: Key) -> None:
    """Round `source` into `target`; both must be dense and share their memory order."""
    if source.numel():
        with torch.cuda.device(source.device):
            _round[(triton.cdiv(source.numel(), 2 * LANES.value),)](source, target, source.numel(), *key)


@triton.jit
def pointer(row, column: tl.constexpr, kind: tl.constexpr, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    pointer = tl.load(row + column).to(tl.pointer_type(kind))
    if aligned:
        pointer = tl.multiple_of(pointer, VECTOR)
    return pointer


@triton.jit
def _square(table, chunks, sums, grad_type: tl.constexpr, aligned: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum the squared gradients of a chunk."""
    chunk = tl.load(chunks + tl.program_id(0))
    row = table + (chunk >> 32) * columns
    begin = (chunk & 0xFFFFFFFF) * (2 * LANES)
    left = tl.minimum(tl.load(row + 5) - begin, 2 * LANES).to(tl.int32)
    if aligned:
        left = tl.multiple_of(left, VECTOR)
    at = tl.arange(0, 2 * LANES)
    grad = tl.load(pointer(row, 1, grad_type, aligned) + begin + at, mask=at < left, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(grad * grad))


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
    weight_type: tl.constexpr,
    grad_type: tl.constexpr,
    moment_type: tl.constexpr,
    copy_type: tl.constexpr,
    aligned: tl.constexpr,
    columns: tl.constexpr,
):
    """Update a chunk of one weight. step_at points to the number of the step, factors_at to what corrects the moments'
    bias; `rest` is 1 - beta; rate_at and factor_at point to the learning rate and the gradients' clip factor, or are
    None; copy_type: dtype of the copies, or None."""
    chunk = tl.load(chunks + tl.program_id(0))
    row = table + (chunk >> 32) * columns
    chunk = chunk & 0xFFFFFFFF
    begin = chunk * (2 * LANES)
    left = tl.minimum(tl.load(row + 5) - begin, 2 * LANES).to(tl.int32)
    if aligned:
        left = tl.multiple_of(left, VECTOR)
    weights = pointer(row, 0, weight_type, aligned) + begin
    grads = pointer(row, 1, grad_type, aligned) + begin
    firsts = pointer(row, 2, moment_type, aligned) + begin
    seconds = pointer(row, 3, moment_type, aligned) + begin
    if rate_at is not None:
        rate = tl.load(rate_at)
    step = tl.load(step_at)
    second_factor = tl.load(factors_at + 1)
    step_size = rate * tl.load(factors_at)
    keep = 1.0 - rate * decay

    lane = tl.arange(0, LANES)
    if weight_type != tl.float32:
        number = tl.load(row + 6).to(tl.int32)
        draw = (chunk * LANES).to(tl.int32) + lane
        bits0, bits1, bits2, bits3 = tl.philox(seed, draw, number, step, 0, ROUNDS)
    for half in tl.static_range(2):
        at = half * LANES + lane
        inside = at < left
        grad = tl.load(grads + at, mask=inside).to(tl.float32)
        if factor_at is not None:
            factor = tl.load(factor_at)
            grad = tl.where(factor > 0.0, grad * factor, 0.0)
        weight = tl.load(weights + at, mask=inside).to(tl.float32)
        first = tl.load(firsts + at, mask=inside).to(tl.float32)
        second = tl.load(seconds + at, mask=inside).to(tl.float32)
        first += rest1 * (grad - first)
        second = beta2 * second + rest2 * grad * grad
        weight = weight * keep - step_size * first / (tl.sqrt(second) * second_factor + eps)
        if copy_type is not None:
            tl.store(pointer(row, 4, copy_type, aligned) + begin + at, weight.to(copy_type), mask=inside)
        if weight_type != tl.float32:
            bits = bits0 if half == 0 else bits2
            more = bits1 if half == 0 else bits3
            weight = stochastic(weight, bits, weight_type)
            first = stochastic(first, bits >> 16, moment_type)
            second = stochastic(second, more, moment_type)
        tl.store(weights + at, weight, mask=inside)
        tl.store(firsts + at, first, mask=inside)
        tl.store(seconds + at, second, mask=inside)


class Tables:
    """The addresses of weights and of their updates' inputs; valid as long as none of them moves. All tensors of a
    weight must be dense and share their memory order."""

    def __init__(self, jobs: Iterable[ParamUpdate], part: type[Part] | None = None):
        """`part`: launches another kernel."""
        alike: defaultdict[object, list[ParamUpdate]] = defaultdict(list)
        for job in jobs:
            if job.weight.numel():
                copy = None if job.copy is None else job.copy.dtype
                alike[job.weight.device, job.weight.dtype, job.grad.dtype, copy, job.step].append(job)
        self._parts = [each for group in alike.values() for each in _parts(group, part or Part)]

    def set_steps(self, step_of: Callable[[Tensor], int], betas: tuple[float, float]) -> None:
        """Set which step the next update is, of each weight; `step_of` returns it. Graphs that are replayed read it."""
        for part in self._parts:
            part.set_step(step_of(part.first), betas)

    def squares(self) -> list[Tensor]:
        """Return sums of squared gradients, float32."""
        return [part.squares() for part in self._parts]

    def update(self, rates: Hyperparams) -> None:
        """Run the step that set_steps has set."""
        for part in self._parts:
            part.update(rates)


@dataclass(kw_only=True)
class Part:
    """The weights of one kernel launch."""

    table: Tensor
    chunks: Tensor
    aligned: bool
    first: Tensor
    """One of the weights, which are all at the same step."""
    weight_type: tl.dtype
    grad_type: tl.dtype
    moment_type: tl.dtype
    copy_type: tl.dtype | None

    def __post_init__(self) -> None:
        device = self.table.device
        self._step, self._factors = torch.zeros((), dtype=torch.int32, device=device), torch.zeros(2, device=device)
        self._first_factor, self._second_factor = self._factors.unbind()

    def set_step(self, step: int, betas: tuple[float, float]) -> None:
        """Fill in the step's values, in double precision until they are stored."""
        beta1, beta2 = (float(beta) for beta in betas)
        self._step.fill_(step)
        self._first_factor.fill_(1 / (1 - beta1**step))
        self._second_factor.fill_((1 - beta2**step) ** -0.5)

    def squares(self) -> Tensor:
        sums = torch.empty(len(self.chunks), device=self.table.device)
        with torch.cuda.device(self.table.device):
            _square[(len(self.chunks),)](
                self.table, self.chunks, sums, grad_type=self.grad_type, aligned=self.aligned, columns=COLUMNS
            )
        return sums

    def update(self, rates: Hyperparams) -> None:
        with torch.cuda.device(self.table.device):
            _update[(len(self.chunks),)](*self.inputs(rates), moment_type=self.moment_type, **self.constants())

    def inputs(self, rates: Hyperparams) -> tuple[Any, ...]:
        """Return the arguments of a kernel from `table` to `seed`."""
        beta1, beta2 = (float(beta) for beta in rates.betas)
        held = isinstance(rates.lr, Tensor) and rates.lr.is_cuda
        return (
            self.table,
            self.chunks,
            self._step,
            self._factors,
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
        )

    def constants(self) -> dict[str, Any]:
        """Return the arguments for which a kernel is compiled."""
        return {
            "weight_type": self.weight_type,
            "grad_type": self.grad_type,
            "copy_type": self.copy_type,
            "aligned": self.aligned,
            "columns": COLUMNS,
        }


def _parts(jobs: list[ParamUpdate], part: type[Part]) -> Iterator[Part]:
    """Yield the launches for updates that differ only in their addresses: aligned ones, then the others."""
    rows, one = _rows(jobs), jobs[0]
    aligned = (rows[:, : SIZE + 1] % VECTOR.value == 0).all(1)
    for chosen, is_aligned in ((rows[aligned], True), (rows[~aligned], False)):
        if len(chosen):
            yield part(
                table=_to_device(chosen, one.weight.device),
                chunks=_chunks(tuple(chosen[:, SIZE].tolist()), one.weight.device),
                aligned=is_aligned,
                first=one.weight,
                weight_type=_TYPES[one.weight.dtype],
                grad_type=_TYPES[one.grad.dtype],
                moment_type=_TYPES[one.exp_avg.dtype],
                copy_type=None if one.copy is None else _TYPES[one.copy.dtype],
            )


def _rows(jobs: list[ParamUpdate]) -> Tensor:
    """Return the address table, (T, COLUMNS) int64."""
    columns = (
        [job.weight.data_ptr() for job in jobs],
        [job.grad.data_ptr() for job in jobs],
        [job.exp_avg.data_ptr() for job in jobs],
        [job.exp_avg_sq.data_ptr() for job in jobs],
        [0 if job.copy is None else job.copy.data_ptr() for job in jobs],
        [job.weight.numel() for job in jobs],
        [job.number for job in jobs],
        *([job.absmax[n].data_ptr() if job.absmax else 0 for job in jobs] for n in range(2)),
    )
    # through an array, because torch.tensor takes milliseconds for a whole model's numbers
    numbers = array("q", chain.from_iterable(columns))
    return torch.frombuffer(numbers, dtype=torch.int64).view(COLUMNS, len(jobs)).t().contiguous()


@lru_cache(maxsize=4096)
def _chunks(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return each program's work: row << 32 | index of the chunk in its weight."""
    counts = (torch.tensor(sizes, dtype=torch.int64) + 2 * LANES.value - 1) // (2 * LANES.value)
    rows = torch.arange(len(sizes)).repeat_interleave(counts)
    within = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    return _to_device(rows << 32 | within, device)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting: PyTorch does not reuse the pinned memory before it has been read."""
    return tensor.pin_memory().to(device, non_blocking=True)
