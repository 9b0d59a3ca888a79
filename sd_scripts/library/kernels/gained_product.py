"""A Linear and its DoRA in one matrix product each way (see folded_product.py), times a factor for each output.

For the backward pass it keeps the result, which the layers that follow, such as attention, mostly keep anyway.
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
    low_rank_gradients_of,
)
from sd_scripts.library.kernels.geglu import geglu


def gained_product(
    x: Tensor,
    joint: Tensor,
    bias: Tensor | None,
    gains: Sequence[Tensor],
    downs: Sequence[Tensor],
    ups: Sequence[Tensor],
    *,
    pieces: Sequence[int] = (),
    gated: bool = False,
    ways: Ways = BOTH,
) -> list[Tensor]:
    """Apply layers with the same input like folded_product, with the factors `gains`, (out_i,) each, of their outputs:
    gain * (x W + (x A) B) + bias, where only the bias is frozen."""
    pieces = pieces or [sum(len(up) for up in ups)]
    outputs = apply(_GainedProduct, x.flatten(0, -2), joint, bias, pieces, gated, *ways, *gains, *downs, *ups)
    return [y.unflatten(0, x.shape[:-1]) for y in outputs]


class _GainedProduct(torch.autograd.Function):
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
        gains, downs, ups = parts[:count], parts[count : 2 * count], parts[2 * count :]
        ctx.ranks, ctx.outs = [len(down) for down in downs], [len(up) for up in ups]
        ctx.sizes = (sum(ctx.outs), x.shape[1])
        gain = torch.cat(gains) if count > 1 else gains[0]
        z, *saved = joint_forward(x, joint, None, ctx.sizes[0], joins_output)
        y = (z * gain if bias is None else z * gain + bias).to(z.dtype)
        ctx.gated, ctx.joins_gradient = gated, joins_gradient
        ctx.save_for_backward(y, gain, bias, joint, *saved)
        return (geglu(y),) if gated else y.split(pieces, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, gain, bias, *rest = ctx.saved_tensors
        if ctx.gated:
            fill = geglu_gradients(grads[0], y, gain)
        else:
            own = gain.split([grad.shape[1] for grad in grads])
            fill = copying([(grad * each).to(grad.dtype) for grad, each in zip(grads, own, strict=True)])
        x_grad, factors = joint_backward(
            fill, *rest, sizes=ctx.sizes, learns=ctx.needs_input_grad[0], joins=ctx.joins_gradient
        )
        downs, ups = low_rank_gradients_of(*factors, ctx.ranks, ctx.outs)
        grad = factors[2]
        product = (y if bias is None else y - bias) * grad  # gain² times its part of the gradient
        gain_grad = torch.where(gain == 0, 0.0, product.to(gain.dtype).sum(0) / gain.square())
        return x_grad, None, None, None, None, None, None, *gain_grad.split(ctx.outs), *downs, *ups
