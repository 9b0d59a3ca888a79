"""Convert 8-bit weights to another dtype, in one pass over memory.

Each forward and each backward pass does it again; PyTorch's conversion of e4m3 and the scaling are two passes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.kernels.triton_kernels import built_for

E4M3 = torch.float8_e4m3fn


def dequantized_rows(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(M, K) int8 or e4m3, times scale (M, 1) float32 -> (M, K), rounded to `dtype` once."""
    kernel = _kernel_on(weight.device) if weight.is_cuda else None
    if kernel is not None and weight.dtype in (E4M3, torch.int8):
        result = torch.empty(weight.shape, dtype=dtype, device=weight.device)
        is_e4m3 = weight.dtype == E4M3
        stored = weight.detach().contiguous()
        with torch.cuda.device(weight.device):
            kernel.fill_rows(
                stored.view(torch.uint8) if is_e4m3 else stored,
                None if scale is None else scale.contiguous(),
                result,
                e4m3=is_e4m3,
            )
        return result
    if scale is None:
        return weight.to(dtype)
    numbers = weight if weight.dtype == torch.int8 else weight.float()
    return torch.mul(numbers, scale, out=torch.empty(weight.shape, dtype=dtype, device=weight.device))


@cache
def _kernel_on(device: torch.device) -> Any:
    """Return the kernel module for this device, or None to use plain PyTorch."""
    few, scale = torch.ones(1, 16, dtype=torch.int8, device=device), torch.ones(1, 1, device=device)
    return built_for(
        device,
        "sd_scripts.library.quantization.byte_kernels",
        lambda kernels: kernels.fill_rows(few, scale, torch.empty_like(scale.expand(1, 16)), e4m3=False),
        "products with weights of 8 bits take longer",
    )
