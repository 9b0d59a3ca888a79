"""The product of activations and a Kronecker product of two matrices, which is never formed: y = x (w1 x w2)'.

With x as (..., q, d), w1 (p, q) and w2 (c, d): y = w1 x w2', which is (..., p, c). A matrix of 1280 x 1280 in factors
of 8 x 8 and 160 x 160 takes 13 % of the operations of its product with x, and no memory of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

UNROLLED = 8
"""Up to this size of w1 compiled code multiplies by it elementwise, which the compiler fuses with what follows."""


def kronecker_product(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """Apply w1 (p, q) x w2 (c, d) to x, (..., q·d) -> (..., p·c)."""
    return _KroneckerProduct.apply(x.flatten(0, -2), w1, w2).unflatten(0, x.shape[:-1])


def _split(x: Tensor, count: int) -> Tensor:
    """(M, n) -> (M, count, n / count)"""
    return x.unflatten(-1, (count, x.shape[-1] // count))


def _mixed(w1: Tensor, h: Tensor) -> Tensor:
    """Multiply w1 (p, q) and each (q, n) of h (M, q, n). One matrix for all rows of h would take a transposed copy."""
    if torch.compiler.is_compiling() and w1.shape[1] <= UNROLLED:
        parts = [w1[:, j, None] * h[:, None, j] for j in range(w1.shape[1])]
        return sum(parts[1:], parts[0])
    return torch.bmm(w1.expand(len(h), *w1.shape), h)


def _mixing_gradient(grad: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of w1 (p, q) from the gradient of `_mixed`, (M, p, n), and h (M, q, n)."""
    return torch.bmm(grad, h.transpose(1, 2)).sum(dim=0)


class _KroneckerProduct(torch.autograd.Function):
    """Keeps only x for the backward pass; autograd would keep a tensor between the two products too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, w1, w2)
        (p, q), (c, d) = w1.shape, w2.shape
        h = _split(x, q)
        y = _mixed(w1, F.linear(h, w2)) if q * c <= p * d else F.linear(_mixed(w1, h), w2)
        return y.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, w1, w2 = ctx.saved_tensors
        h, g = _split(x, w1.shape[1]), _split(grad, w1.shape[0])  # (M, q, d), (M, p, c)
        back = g @ w2  # (M, p, d)
        x_grad = _mixed(w1.t(), back).flatten(1)
        w1_grad = _mixing_gradient(back, h)
        mixed = _mixed(w1.t(), g)  # (M, q, c)
        w2_grad = mixed.flatten(0, 1).t() @ h.flatten(0, 1)
        return x_grad, w1_grad, w2_grad
