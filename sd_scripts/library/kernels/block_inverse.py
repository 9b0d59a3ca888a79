"""The inverses of I - Q for many small skew-symmetric Q.

PyTorch's are made by libraries of the GPU that may wait for it or allocate memory of their own, which a CUDA graph
cannot record. Here a program makes each in its registers, by Gauss-Jordan elimination. That needs no exchange of rows:
the symmetric part of I - Q is I, which makes every pivot at least 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.kernels.triton_kernels import HAS_TRITON

torch.library.define("sd_scripts::inverse_of_blocks", "(Tensor blocks) -> Tensor")


@torch.library.impl("sd_scripts::inverse_of_blocks", ["CPU", "CUDA"])
def _inverse(blocks: Tensor) -> Tensor:
    if HAS_TRITON and blocks.is_cuda and blocks.dtype == torch.float32:
        from sd_scripts.library.kernels import inverse_kernel

        if blocks.shape[-1] <= inverse_kernel.LARGEST:
            return inverse_kernel.inverse(blocks.contiguous())
    inverse, _ = torch.linalg.inv_ex(blocks)
    return inverse.contiguous()


@torch.library.register_fake("sd_scripts::inverse_of_blocks")
def _(blocks: Tensor) -> Tensor:
    return blocks.new_empty(blocks.shape)


def inverse_of_blocks(blocks: Tensor) -> Tensor:
    """Return the inverses of `blocks`, (..., n, n), whose symmetric part is positive definite."""
    return _Inverse.apply(blocks)


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: Tensor) -> Tensor:  # type: ignore[override]
        inverse = torch.ops.sd_scripts.inverse_of_blocks(blocks)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT)
