"""Norms of the rows of W + B A for many layers of one shape on the GPU, each weight read once, in one launch.

One product W A' or S' W alone fills a small part of a GPU, and a model of hundreds of layers has hundreds of them.
"""

import logging
from array import array
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

logger = logging.getLogger(__name__)

ROWS, COLUMNS, DEPTH = 64, 128, 64
"""Rows of W of a program of `norms`, columns of one of `add_products`, and how much of the other side it reads at a
time.
"""
LARGEST_RANK = 128
FIELDS = tl.constexpr(5)
"""A row of the table has the addresses and row strides of W and B, and the address of the trained norms."""
ROUNDING = 0.02
"""Relative difference of results that were rounded to 16 bits."""
KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _norms(  # type: ignore[no-untyped-def]
    table,
    downs,
    grams,
    squares,
    slopes,
    roots,
    gains,
    out,
    width,
    rank,
    eps,
    kind: tl.constexpr,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Program (i, n) makes ROWS rows of layer n: slope = (W + B A) A', root = |W + B A|, gain = norm / root."""
    n = tl.program_id(1).to(tl.int64)
    entry = table + n * FIELDS
    weight = tl.multiple_of(tl.load(entry).to(tl.pointer_type(kind)), 16)
    stride = tl.multiple_of(tl.load(entry + 1), 8)
    up, up_stride = tl.load(entry + 2).to(tl.pointer_type(kind)), tl.load(entry + 3)
    norm = tl.load(entry + 4).to(tl.pointer_type(tl.float32))
    row, r, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, R), tl.arange(0, DEPTH)
    in_row, in_rank = row < out, r < rank
    slope = tl.zeros((ROWS, R), dtype=tl.float32)
    downs += n * rank * width
    for start in range(0, width, DEPTH):
        at = start + k
        wide = tl.load(
            weight + row[:, None] * stride + at[None, :], mask=in_row[:, None] & (at < width)[None, :], other=0.0
        )
        narrow = tl.load(
            downs + r[None, :] * width + at[:, None], mask=in_rank[None, :] & (at < width)[:, None], other=0.0
        )
        slope = tl.dot(wide, narrow, slope)
    inside = in_row[:, None] & in_rank[None, :]
    own = tl.load(up + row[:, None] * up_stride + r[None, :], mask=inside, other=0.0)
    gram = tl.load(
        grams + n * rank * rank + r[:, None] * rank + r[None, :], mask=in_rank[:, None] & in_rank[None, :], other=0.0
    )
    # not added to slope by the product: on Hopper, Triton 3.6 reads the sum below after it has been overwritten
    change = tl.dot(own, gram)
    square = tl.sum(own.to(tl.float32) * (2.0 * slope + change), axis=1)
    slope += change
    place = n * out + row
    square += tl.load(squares + place, mask=in_row, other=1.0)
    root = tl.sqrt(tl.maximum(square, eps * eps))
    tl.store(slopes + place[:, None] * rank + r[None, :], slope.to(kind), mask=inside)
    tl.store(roots + place, root, mask=in_row)
    tl.store(gains + place, tl.load(norm + row, mask=in_row, other=0.0) / (root + eps), mask=in_row)


@triton.jit
def _add_products(  # type: ignore[no-untyped-def]
    table,
    lefts,
    results,
    out,
    width,
    rank,
    kind: tl.constexpr,
    R: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Program (i, n) adds COLUMNS columns of left' W of layer n to its result."""
    n = tl.program_id(1).to(tl.int64)
    entry = table + n * FIELDS
    weight = tl.multiple_of(tl.load(entry).to(tl.pointer_type(kind)), 16)
    stride = tl.multiple_of(tl.load(entry + 1), 8)
    column, r, k = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, R), tl.arange(0, DEPTH)
    in_column, in_rank = column < width, r < rank
    lefts += n * out * rank
    place = results + n * rank * width + r[:, None] * width + column[None, :]
    inside = in_rank[:, None] & in_column[None, :]
    sums = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    for start in range(0, out, DEPTH):
        at = start + k
        narrow = tl.load(
            lefts + at[None, :] * rank + r[:, None], mask=(at < out)[None, :] & in_rank[:, None], other=0.0
        )
        wide = tl.load(
            weight + at[:, None] * stride + column[None, :], mask=(at < out)[:, None] & in_column[None, :], other=0.0
        )
        sums = tl.dot(narrow, wide, sums)
    tl.store(place, sums.to(kind), mask=inside)


class LowRankNorms:
    """Layers of one shape: W (out, in), B (out, r) and trained norms of `out` values."""

    def __init__(self, weights: Sequence[Tensor], ups: Sequence[Tensor], norms: Sequence[Tensor]):
        table = array("q")
        for weight, up, norm in zip(weights, ups, norms, strict=True):
            table.extend((weight.data_ptr(), weight.stride(0), up.data_ptr(), up.stride(0), norm.data_ptr()))
        self._addresses = _addresses(weights, ups, norms)
        self._table = torch.frombuffer(table, dtype=torch.int64).to(weights[0].device)
        (self._out, self._width), self._rank = weights[0].shape, ups[0].shape[1]
        self._kind, self._count = KINDS[weights[0].dtype], len(weights)
        self._padded_rank = max(16, triton.next_power_of_2(self._rank))

    @staticmethod
    def fits(weights: Sequence[Tensor], ups: Sequence[Tensor], norms: Sequence[Tensor]) -> bool:
        """Return whether the kernels compute these: 16 bits, on a GPU, rows at multiples of 16 bytes."""
        return (
            all(weight.is_cuda and weight.dtype in KINDS for weight in weights)
            and all(up.dtype == weight.dtype for up, weight in zip(ups, weights, strict=True))
            and all(weight.stride(1) == 1 and weight.stride(0) % 8 == 0 for weight in weights)
            and all(weight.data_ptr() % 16 == 0 for weight in weights)
            and all(up.stride(1) == 1 and up.shape[1] <= LARGEST_RANK for up in ups)
            and all(norm.dtype == torch.float32 and norm.is_contiguous() and norm.is_cuda for norm in norms)
            and _compiled_correctly(weights[0].device, weights[0].dtype, ups[0].shape[1])
        )

    def are_at(self, weights: Sequence[Tensor], ups: Sequence[Tensor], norms: Sequence[Tensor]) -> bool:
        """Return whether the tensors are where they were at first."""
        return self._addresses == _addresses(weights, ups, norms)

    def norms(self, downs: Tensor, squares: Tensor, slopes: Tensor, roots: Tensor, gains: Tensor, eps: float) -> None:
        """Write slopes = (W + B A) A' (l, out, r), roots = |W + B A| and gains = norm / (root + eps), both (l, out).

        `downs`: A, (l, r, in); `squares`: |W|^2, (l, out) float32.
        """
        grams = downs @ downs.mT
        with torch.cuda.device(downs.device):
            _norms[(triton.cdiv(self._out, ROWS), self._count)](
                *(self._table, downs, grams, squares, slopes, roots, gains, self._out, self._width, self._rank, eps),
                kind=self._kind,
                R=self._padded_rank,
                ROWS=ROWS,
                DEPTH=DEPTH,
                num_warps=4,
                num_stages=3,
            )

    def add_products(self, lefts: Tensor, results: Tensor) -> None:
        """Add lefts' W, lefts (l, out, r), to results (l, r, in)."""
        with torch.cuda.device(lefts.device):
            _add_products[(triton.cdiv(self._width, COLUMNS), self._count)](
                *(self._table, lefts, results, self._out, self._width, self._rank),
                kind=self._kind,
                R=self._padded_rank,
                COLUMNS=COLUMNS,
                DEPTH=DEPTH,
                num_warps=4,
                num_stages=3,
            )


@cache
def _compiled_correctly(device: torch.device, dtype: torch.dtype, rank: int) -> bool:
    """Compare the kernels with plain products on random numbers, once: a version of Triton that compiles them wrongly
    must not train a model."""
    if torch.cuda.is_current_stream_capturing():
        return True
    out, width = 2 * ROWS, 2 * COLUMNS
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).mul(rank**-0.5).to(device, dtype)

    weight, up, down, left = draw(out, width), draw(out, rank), draw(1, rank, width), draw(1, out, rank)
    squares, norms = weight.float().square().sum(1)[None], torch.ones(out, 1, device=device)
    slopes, sums = torch.empty_like(left), torch.zeros_like(down)
    roots, gains = torch.empty_like(squares), torch.empty_like(squares)
    layer = LowRankNorms([weight], [up], [norms])
    layer.norms(down, squares, slopes, roots, gains, 0.0)
    layer.add_products(left, sums)
    changed = weight.double() + up.double() @ down[0].double()
    results = (slopes, roots, gains, sums)
    exact = (
        changed @ down.double().mT,
        changed.norm(dim=1),
        1 / changed.norm(dim=1),
        left.double().mT @ weight.double(),
    )
    if all((ours - plain).norm() < ROUNDING * plain.norm() for ours, plain in zip(results, exact, strict=True)):
        return True
    logger.warning("Triton's kernel for the norms of DoRA errs on this GPU; they are computed without it, slower")
    return False


def _addresses(*groups: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for group in groups for tensor in group]
