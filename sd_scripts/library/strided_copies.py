"""Copying many small matrices into parts of larger ones on the GPU, in one launch."""

from array import array
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = tl.constexpr(1024)
COLUMNS = tl.constexpr(6)
"""A row of the table has the start of the source, the target's address, size, width and stride, and
where the factor is in the source; -1: none."""
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _copy(source, table, chunks, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    chunk = tl.load(chunks + tl.program_id(0))
    row = table + (chunk >> 32) * COLUMNS
    values = source + tl.load(row)
    target = tl.load(row + 1).to(tl.pointer_type(kind))
    size, width, stride = tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32), tl.load(row + 4)
    at = (chunk & 0xFFFFFFFF).to(tl.int32) * CHUNK + tl.arange(0, CHUNK)
    value = tl.load(values + at, mask=at < size)
    factor = tl.load(row + 5)
    if factor >= 0:
        value = (value.to(tl.float32) * tl.load(source + factor).to(tl.float32)).to(kind)
    tl.store(target + (at // width) * stride + at % width, value, mask=at < size)


class StridedCopies:
    """Copies of parts of a flat tensor into matrices with rows of any stride, which must not move."""

    def __init__(self, runs: Sequence[tuple[int, Tensor, int | None]]):
        """`runs`: where a matrix begins in the flat tensor, where it is copied to, and where a factor of it is."""
        table, chunks = array("q"), array("q")
        for number, (start, target, factor) in enumerate(runs):
            assert target.stride(1) == 1
            table.extend((start, target.data_ptr(), target.numel(), target.shape[1], target.stride(0)))
            table.append(-1 if factor is None else factor)
            chunks.extend(number << 32 | chunk for chunk in range(triton.cdiv(target.numel(), CHUNK.value)))
        self._targets = [target for _, target, _ in runs]  # keeps their memory
        device = self._targets[0].device
        self._table, self._chunks = (
            torch.frombuffer(values, dtype=torch.int64).to(device) for values in (table, chunks)
        )

    def run(self, source: Tensor) -> None:
        """Copy from `source`, flat and of the targets' dtype."""
        with torch.cuda.device(source.device):
            _copy[(len(self._chunks),)](source, self._table, self._chunks, kind=KINDS[source.dtype])
