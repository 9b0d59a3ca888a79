"""Frozen weights in int8 with a scale per row, multiplied in int8 (W8A8) or in the model's dtype.

In int8, the rows of the activations, and in backward the rows of the output's gradient, are quantized as they arrive:
plain operations, which the compiler fuses with their neighbours. A product adds up in int32, so that only the rounding
of its factors costs accuracy: 1.2 % where rows are normally distributed, more where they have outliers, and even with
those hardly more than fp8's 3.7 %. So the gradient is multiplied in int8 too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.dequantizing import dequantized_rows
from sd_scripts.library.quantization.quantized import MULTIPLE, SCALE, WeightFormat, define_product, transposed

LARGEST = 127
FEWEST_ROWS = 17
"""torch._int_mm takes no fewer rows on a GPU; so few gain nothing either."""
TINY = 1e-12
"""Replaces the largest value of a row of zeros."""


@dataclass(frozen=True, kw_only=True)
class Int8(WeightFormat):
    """int8 with a scale per row, (out, 1) float32; symmetric, -127 to 127."""

    compute: bool = False
    """Whether to multiply in int8 as well."""

    def quantize(self, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        quantized, scale = quantized_rows(weight)
        return quantized, {SCALE: scale}

    def dequantize(self, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return dequantized_rows(weight, scale, dtype)

    def product(self, x: Tensor, layer: nn.Linear) -> Tensor:
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        if self.compute and x.shape[:-1].numel() >= FEWEST_ROWS:
            return _QuantizedProduct.apply(x, layer.weight, layer.weight_scale, bias)
        return int8_product(x, layer.weight, layer.weight_scale, bias)


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) to int8 (M, K) and scales (M, 1) float32. Rows that are not finite get such a scale."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True).clamp_min(TINY)
    return (x * (LARGEST / largest)).round_().to(torch.int8), largest / LARGEST


int8_product = define_product("int8", dequantized_rows)


class _QuantizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(weight, scale)
        rows, row_scale = quantized_rows(x.flatten(0, -2))
        y = (torch._int_mm(rows, weight.t()) * row_scale).mul_(scale.t())
        return (y if bias is None else y.add_(bias)).to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, scale = ctx.saved_tensors
        rows, row_scale = quantized_rows(grad.flatten(0, -2) * scale.t())
        x_grad = torch.ops.sd_scripts.int8_int_back(rows, weight) * row_scale
        return x_grad.to(grad.dtype).unflatten(0, grad.shape[:-1]), None, None, None


@torch.library.custom_op("sd_scripts::int8_int_back", mutates_args=(), schema="(Tensor rows, Tensor weight) -> Tensor")
def _int_back(rows: Tensor, weight: Tensor) -> Tensor:
    """(M, out) int8, (out, in) int8 -> (M, in) int32; products of int8 are quick with the weight transposed only."""
    return torch._int_mm(rows, transposed(weight).t())


@_int_back.register_fake
def _(rows: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1], dtype=torch.int32)


def multiplies(device: torch.device) -> bool:
    """Return whether a device multiplies in int8: RTX 30 and newer, and CPUs."""
    if device.type not in ("cpu", "cuda"):
        return False
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        rows = torch.ones(FEWEST_ROWS, MULTIPLE, dtype=torch.int8, device=device)
        torch._int_mm(rows, torch.ones(MULTIPLE, MULTIPLE, dtype=torch.int8, device=device).t())
    except RuntimeError:
        return False
    return True
