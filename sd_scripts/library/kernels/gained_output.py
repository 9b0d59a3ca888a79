"""The outputs of a layer times a factor for each, plus the bias, which keeps only its result for the backward pass.

The layers that follow, such as attention, mostly keep that anyway; autograd would keep the input too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gained_output(z: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:
    """Return gain (out,) * z (..., out) + bias (out,), in the dtype of z; `bias` is frozen."""
    return _GainedOutput.apply(z, gain, bias)


class _GainedOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        y = z * gain if bias is None else z * gain + bias
        y = y.to(z.dtype)
        ctx.save_for_backward(y, gain, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        y, gain, bias = ctx.saved_tensors
        product = y if bias is None else y - bias
        sums = (grad * product).to(gain.dtype).flatten(0, -2).sum(0)
        return (grad * gain).to(grad.dtype), torch.where(gain == 0, 0.0, sums / gain), None
