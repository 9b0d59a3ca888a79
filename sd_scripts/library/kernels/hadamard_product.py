"""The product of activations and W + (a1 b1) * (a2 b2), elementwise in the second term, as one operator.

As an operator of its own it keeps no matrix of W's size for the backward pass; the compiler would keep two.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Grads = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def hadamard_product(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor
) -> Tensor:
    """Apply `weight` (out, in), frozen, plus (a1 (out, r) · b1 (r, in)) * (a2 · b2) to x, (..., in) -> (..., out)."""
    y = torch.ops.sd_scripts.hadamard_product(x.flatten(0, -2), weight, bias, a1, b1, a2, b2)
    return y.unflatten(0, x.shape[:-1])


def _sum(weight: Tensor | None, first: Tensor, second: Tensor) -> Tensor:
    return first * second if weight is None else torch.addcmul(weight, first, second)


@torch.library.custom_op(
    "sd_scripts::hadamard_product",
    mutates_args=(),
    schema="(Tensor x, Tensor? weight, Tensor? bias, Tensor a1, Tensor b1, Tensor a2, Tensor b2) -> Tensor",
)
def _product(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor
) -> Tensor:
    return F.linear(x, _sum(weight, a1 @ b1, a2 @ b2), bias)


@torch.library.custom_op(
    "sd_scripts::hadamard_product_back",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor? weight, Tensor a1, Tensor b1, Tensor a2, Tensor b2) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _product_back(
    grad: Tensor, x: Tensor, weight: Tensor | None, a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor
) -> Grads:
    first, second = a1 @ b1, a2 @ b2
    x_grad = grad @ _sum(weight, first, second)
    weight_grad = grad.t() @ x
    first, second = weight_grad * second, weight_grad * first  # the gradients of the two factors
    return x_grad, first @ b1.t(), a1.t() @ first, second @ b2.t(), a2.t() @ second


@_product.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None, a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor) -> Tensor:
    return x.new_empty(len(x), len(a1))


@_product_back.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor | None, a1: Tensor, b1: Tensor, a2: Tensor, b2: Tensor) -> Grads:
    return x.new_empty(x.shape), *(part.new_empty(part.shape) for part in (a1, b1, a2, b2))  # type: ignore[return-value]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *parts = inputs
    ctx.save_for_backward(x, weight, *parts)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x_grad, *parts = torch.ops.sd_scripts.hadamard_product_back(grad.contiguous(), *ctx.saved_tensors)
    return x_grad, None, None, *parts


_product.register_autograd(_gradients, setup_context=_save_for_backward)
