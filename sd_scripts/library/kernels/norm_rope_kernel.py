"""The kernels of normalised and rotated heads (see norm_rope.py): a program for each token."""

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(x, cos, sin, HEADS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate neighbouring pairs of x (HEADS, WIDTH) by the angles of cos and sin, (WIDTH / 2,)."""
    a, b = tl.split(tl.reshape(x, (HEADS, WIDTH // 2, 2)))
    return tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (HEADS, WIDTH))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x,
    scale,
    cos,
    sin,
    y,
    heads,
    first,
    tokens,
    x_batch,
    x_token,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """y (B, tokens, heads, WIDTH), from token `first` on: x (B, S, heads, WIDTH), normalised, scaled and rotated."""
    token, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    head, at = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = (head < heads)[:, None]
    own = head[:, None] * WIDTH + at[None, :]
    value = tl.load(x + batch * x_batch + token.to(tl.int64) * x_token + own, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)
    normed = value * root[:, None] * tl.load(scale + at).to(tl.float32)[None, :]
    pair = (first + token) * (WIDTH // 2) + tl.arange(0, WIDTH // 2)
    c, s = tl.load(cos + pair)[None, :], tl.load(sin + pair)[None, :]
    place = y + (batch * tokens + first + token) * heads * WIDTH + own
    tl.store(place, _rotate(normed, c, s, HEADS, WIDTH).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad,
    x,
    scale,
    cos,
    sin,
    x_grad,
    heads,
    first,
    grad_batch,
    grad_token,
    grad_head,
    x_batch,
    x_token,
    x_tokens,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """x_grad (B, x_tokens, heads, WIDTH) of x, from the gradient of what `_forward` writes from token `first` on."""
    token, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    head, at = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    inside = (head < heads)[:, None]
    own = head[:, None] * WIDTH + at[None, :]
    source = grad + batch * grad_batch + (first + token).to(tl.int64) * grad_token
    of_output = tl.load(source + head[:, None] * grad_head + at[None, :], mask=inside, other=0.0).to(tl.float32)
    pair = (first + token) * (WIDTH // 2) + tl.arange(0, WIDTH // 2)
    c, s = tl.load(cos + pair)[None, :], tl.load(sin + pair)[None, :]
    slope = _rotate(of_output, c, -s, HEADS, WIDTH) * tl.load(scale + at).to(tl.float32)[None, :]
    value = tl.load(x + batch * x_batch + token.to(tl.int64) * x_token + own, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)[:, None]
    normed = value * root
    result = root * (slope - normed * (tl.sum(slope * normed, axis=1) / WIDTH)[:, None])
    place = x_grad + (batch * x_tokens + token) * heads * WIDTH + own
    tl.store(place, result.to(x_grad.dtype.element_ty), mask=inside)


def forward(parts: Sequence[Tensor], scales: Sequence[Tensor], cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """See normed_and_rotated."""
    batch, _, heads, width = parts[0].shape
    tokens = sum(x.shape[1] for x in parts)
    y = parts[0].new_empty(batch, tokens, heads, width)
    for first, x, scale in _placed(parts, scales):
        _forward[(x.shape[1], batch)](
            *(x, scale, cos, sin, y, heads, first, tokens, x.stride(0), x.stride(1), eps), **_tile(heads, width)
        )
    return y


def backward(
    grad: Tensor, parts: Sequence[Tensor], scales: Sequence[Tensor], cos: Tensor, sin: Tensor, eps: float
) -> list[Tensor]:
    """Return the gradients of the parts from the gradient of `forward`'s output."""
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    results = []
    for first, x, scale in _placed(parts, scales):
        batch, tokens, heads, width = x.shape
        result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        strides = (*grad.stride()[:3], x.stride(0), x.stride(1))
        _backward[(tokens, batch)](
            *(grad, x, scale, cos, sin, result, heads, first, *strides, tokens, eps), **_tile(heads, width)
        )
        results.append(result)
    return results


def _placed(parts: Sequence[Tensor], scales: Sequence[Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the first token, the values and the scale of each part, its heads side by side."""
    first = 0
    for x, scale in zip(parts, scales, strict=True):
        dense = x.stride(3) == 1 and x.stride(2) == x.shape[3]
        yield first, x if dense else x.contiguous(), scale
        first += x.shape[1]


def _tile(heads: int, width: int) -> dict[str, int]:
    padded = triton.next_power_of_2(heads)
    return {"HEADS": padded, "WIDTH": width, "num_warps": max(1, min(8, padded * width // 1024))}
