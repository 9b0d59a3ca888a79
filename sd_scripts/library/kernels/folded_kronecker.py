"""A Linear and its LoKr in one matrix product each way (see folded_product.py).

With w2 = up · down, w1 x w2 = (w1 x up) (I x down): a LoRA of rank q·r, whose matrices follow from the three. Its
products are larger than those of the three apart, but they write nothing that has to be added to the base's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.kernels.folded_product import (
    BOTH,
    Ways,
    apply,
    copying,
    geglu_gradients,
    joint_backward,
    joint_forward,
)
from sd_scripts.library.kernels.geglu import geglu
from sd_scripts.library.kernels.triton_kernels import HAS_TRITON

Gradients = tuple[Tensor, Tensor, Tensor]

torch.library.define(
    "sd_scripts::kronecker_gradients",
    "(Tensor x, Tensor h, Tensor grad, Tensor low, Tensor w1, Tensor up) -> (Tensor, Tensor, Tensor)",
)


def plain_gradients(x: Tensor, h: Tensor, grad: Tensor, low: Tensor, w1: Tensor, up: Tensor) -> Gradients:
    """Return the gradients of w1 (p, q), up (c, r) and down (r, d).

    x (M, q·d), h (M, q·r) = x (I x down)', grad (M, p·c), low (M, q·r) = grad (w1 x up).
    """
    (p, q), (c, rank) = w1.shape, up.shape
    product = (grad.t() @ h).view(p, c, q, rank)  # the gradient of w1 x up
    w1_grad = torch.einsum("pcqr,cr->pq", product, up)
    up_grad = torch.einsum("pcqr,pq->cr", product, w1)
    down_grad = torch.einsum("mqr,mqd->rd", low.unflatten(1, (q, rank)), x.unflatten(1, (q, -1)))
    return w1_grad, up_grad, down_grad


@torch.library.impl("sd_scripts::kronecker_gradients", ["CPU", "CUDA"])
def _gradients(x: Tensor, h: Tensor, grad: Tensor, low: Tensor, w1: Tensor, up: Tensor) -> Gradients:
    if HAS_TRITON and x.is_cuda and x.dtype != torch.float32:
        from sd_scripts.library.kernels import kronecker_gradients as kernels

        if kernels.fits(w1.shape[1], up.shape[1]):
            with torch.cuda.device(x.device):
                return kernels.kronecker_gradients(x, h, grad, low, w1.contiguous(), up.contiguous())
    return plain_gradients(x, h, grad, low, w1, up)


@torch.library.register_fake("sd_scripts::kronecker_gradients")
def _(x: Tensor, h: Tensor, grad: Tensor, low: Tensor, w1: Tensor, up: Tensor) -> Gradients:
    return x.new_empty(w1.shape), x.new_empty(up.shape), x.new_empty(up.shape[1], x.shape[1] // w1.shape[1])


def folded_kronecker_product(
    x: Tensor,
    joint: Tensor,
    bias: Tensor | None,
    w1s: Sequence[Tensor],
    ups: Sequence[Tensor],
    downs: Sequence[Tensor],
    *,
    pieces: Sequence[int] = (),
    gated: bool = False,
    ways: Ways = BOTH,
) -> list[Tensor]:
    """Apply layers with the same input, (..., in) -> (..., out), and split their outputs, side by side, into `pieces`,
    or with `gated` return their geglu.

    joint [[W, B], [A, 0]] has the values that are computed with: A the matrices I x down below each other, B those
    w1 x up as blocks of a diagonal. w1 (p, q), up (c, r), down (r, d) are given only to get their gradients.
    """
    pieces = pieces or [sum(len(w1) * len(up) for w1, up in zip(w1s, ups, strict=True))]
    outputs = apply(_FoldedKronecker, x.flatten(0, -2), joint, bias, pieces, gated, *ways, *w1s, *ups, *downs)
    return [y.unflatten(0, x.shape[:-1]) for y in outputs]


class _FoldedKronecker(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        joint: Tensor,
        bias: Tensor | None,
        pieces: Sequence[int],
        gated: bool,
        joins_output: bool,
        joins_gradient: bool,
        *parts: Tensor,
    ) -> tuple[Tensor, ...]:
        count = len(parts) // 3
        w1s, ups = parts[:count], parts[count : 2 * count]
        ctx.count, ctx.sizes = count, (sum(len(w1) * len(up) for w1, up in zip(w1s, ups, strict=True)), x.shape[1])
        ctx.joins_gradient = joins_gradient
        y, *saved = joint_forward(x, joint, bias, ctx.sizes[0], joins_output)
        ctx.save_for_backward(*w1s, *ups, y if gated else None, joint, *saved)
        return (geglu(y),) if gated else y.split(pieces, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        count, saved = ctx.count, ctx.saved_tensors
        w1s, ups, (y, *rest) = saved[:count], saved[count : 2 * count], saved[2 * count :]
        fill = copying(grads) if y is None else geglu_gradients(grads[0], y)
        x_grad, factors = joint_backward(
            fill, *rest, sizes=ctx.sizes, learns=ctx.needs_input_grad[0], joins=ctx.joins_gradient
        )
        x, h, grad, low = factors
        ranks = [w1.shape[1] * up.shape[1] for w1, up in zip(w1s, ups, strict=True)]
        outs = [len(w1) * len(up) for w1, up in zip(w1s, ups, strict=True)]
        own = zip(h.split(ranks, 1), grad.split(outs, 1), low.split(ranks, 1), w1s, ups, strict=True)
        gradients = [torch.ops.sd_scripts.kronecker_gradients(x, *each) for each in own]
        return x_grad, None, None, None, None, None, None, *(each[place] for place in range(3) for each in gradients)
