"""The gradients of GEGLU, hidden * gelu(gate), both halves written in one launch where the next product reads them.

The compiler makes them in one kernel that computes both for every value and then selects, which takes three times as
long on a large GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.library.kernels.triton_kernels import HAS_TRITON

torch.library.define(
    "sd_scripts::fill_geglu_gradients", "(Tensor(a!) padded, Tensor grad, Tensor projected, Tensor? gain) -> ()"
)


def geglu(projected: Tensor) -> Tensor:
    """(..., 2F), hidden and gate side by side -> (..., F)"""
    hidden, gate = projected.chunk(2, dim=-1)
    return hidden * F.gelu(gate)


@torch.library.impl("sd_scripts::fill_geglu_gradients", ["CPU", "CUDA"])
def _fill_geglu_gradients(padded: Tensor, grad: Tensor, projected: Tensor, gain: Tensor | None) -> None:
    """Write the gradient of `projected` (M, 2F), times `gain` (2F,), into the first columns of padded (M, 2F + r).

    grad (M, F) is the gradient of geglu(projected).
    """
    if HAS_TRITON and padded.is_cuda:
        from sd_scripts.library.kernels import geglu_kernel

        with torch.cuda.device(padded.device):
            geglu_kernel.fill_gradients(padded, grad.contiguous(), projected.contiguous(), gain)
        return
    hidden, gate = projected.chunk(2, dim=1)
    halves = grad * F.gelu(gate), torch.ops.aten.gelu_backward(grad * hidden, gate)
    gains = gain.chunk(2) if gain is not None else (1, 1)
    for target, half, own in zip(padded[:, : projected.shape[1]].chunk(2, dim=1), halves, gains, strict=True):
        target.copy_(half * own)


@torch.library.register_fake("sd_scripts::fill_geglu_gradients")
def _(padded: Tensor, grad: Tensor, projected: Tensor, gain: Tensor | None) -> None:
    return None
