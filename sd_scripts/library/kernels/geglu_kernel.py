"""The kernel of the gradients of GEGLU (see geglu.py)."""

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 512
"""Columns of each half that a program writes."""
ROOT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)
"""1 / sqrt(2 pi)"""


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
    padded, grad, projected, gain, half, tiles, stride, GAINED: tl.constexpr, COLUMNS: tl.constexpr
):
    """Program i writes COLUMNS columns of both halves of a row of `padded`."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < half
    source = projected + row * 2 * half + column
    g = tl.load(grad + row * half + column, mask=inside, other=0.0).to(tl.float32)
    hidden = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    cdf = 0.5 + 0.5 * tl.erf(gate * ROOT_HALF)
    first = g * gate * cdf
    second = g * hidden * (cdf + gate * DENSITY * tl.exp(-0.5 * gate * gate))
    if GAINED:
        first *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
        second *= tl.load(gain + half + column, mask=inside, other=0.0).to(tl.float32)
    target = padded + row * stride + column
    kind = padded.dtype.element_ty
    tl.store(target, first.to(kind), mask=inside)
    tl.store(target + half, second.to(kind), mask=inside)


def fill_gradients(padded: Tensor, grad: Tensor, projected: Tensor, gain: Tensor | None) -> None:
    """See fill_geglu_gradients; rows of `grad` and `projected` follow each other without gaps."""
    rows, half = grad.shape
    tiles = triton.cdiv(half, COLUMNS)
    _gradients[(rows * tiles,)](
        *(padded, grad, projected, padded if gain is None else gain, half, tiles, padded.stride(0)),
        GAINED=gain is not None,
        COLUMNS=COLUMNS,
        num_warps=2,
    )
