"""The one attention of all families: PyTorch's scaled_dot_product_attention, with a guard for its backward."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""With a mask cuDNN's backward can give NaN at some lengths (pytorch #196678), and FlashAttention takes none."""


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax(q k' / sqrt(d)) v.

    q (B, S, H, D), k and v (B, T, H, D), mask broadcastable to (B, H, S, T) -> (B, S, H * D).
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(MASKED) if mask is not None and q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out = out.transpose(1, 2).flatten(2)
    return _DenseGradient.apply(out) if out.is_cuda and out.requires_grad else out


class _DenseGradient(torch.autograd.Function):
    """Identity whose gradient is contiguous.

    cuDNN's backward, the default on Hopper, plans for the strides of the gradient that it meets first and returns
    silently wrong numbers when they change. A gradient that is dense already passes without a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.contiguous()
