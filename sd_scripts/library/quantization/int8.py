"""Frozen weights in int8 with a scale per row, multiplied in int8 (W8A8) or in the model's dtype.

In int8, the rows of the activations, and in backward the rows of the output's gradient, are quantized as they arrive:
plain operations, which the compiler fuses with their neighbours. One kernel computes a product, scales it and adds the
update of a LoRA (int8_kernel.py). A product adds up in int32, so that only the rounding
of its factors costs accuracy: 1.2 % where rows are normally distributed, more where they have outliers, and even with
those hardly more than fp8's 3.7 %. So the gradient is multiplied in int8 too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.kernels.triton_kernels import built_for
from sd_scripts.library.quantization.dequantizing import dequantized_rows
from sd_scripts.library.quantization.quantized import MULTIPLE, SCALE, WeightFormat, define_product, transposed

LARGEST = 127
FEWEST_ROWS = 17
"""torch._int_mm takes no fewer rows on a GPU; so few gain nothing either."""
LARGEST_RANK = 128
"""Of a LoRA whose update the kernel adds."""
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
            return _QuantizedProduct.apply(x, layer.weight, layer.weight_scale, bias, None, None)
        return int8_product(x, layer.weight, layer.weight_scale, bias)

    def updated_product(self, x: Tensor, layer: nn.Linear, down: Tensor, up: Tensor) -> Tensor | None:
        if not self.compute or x.shape[:-1].numel() < FEWEST_ROWS:
            return None
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return _QuantizedProduct.apply(x, layer.weight, layer.weight_scale, bias, down, up)


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) to int8 (M, K) and scales (M, 1) float32. Rows that are not finite get such a scale."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True).clamp_min(TINY)
    return (x * (LARGEST / largest)).round_().to(torch.int8), largest / LARGEST


int8_product = define_product("int8", dequantized_rows)


class _QuantizedProduct(torch.autograd.Function):
    """A product in int8, and with `down` (r, in) and `up` (out, r) also the update of a LoRA."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
    ) -> Tensor:
        flat = x.flatten(0, -2)
        low = None if down is None else F.linear(flat, down)
        ctx.save_for_backward(weight, scale, *(() if low is None else (flat, low, down, up)))
        y = torch.ops.sd_scripts.int8_scaled(*quantized_rows(flat), weight, scale, bias, low, up, x.dtype)
        return y.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, scale, *lora = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        low_grad = down = down_grad = up_grad = None
        if lora:
            x, low, down, up = lora
            low_grad = flat @ up
            down_grad, up_grad = low_grad.t() @ x, flat.t() @ low
        x_grad = None
        if ctx.needs_input_grad[0]:
            rows, row_scale = quantized_rows(flat * scale.t())
            x_grad = torch.ops.sd_scripts.int8_scaled_back(rows, row_scale, weight, low_grad, down, grad.dtype)
            x_grad = x_grad.unflatten(0, grad.shape[:-1])
        return x_grad, None, None, None, down_grad, up_grad


@torch.library.custom_op(
    "sd_scripts::int8_scaled",
    mutates_args=(),
    schema="(Tensor rows, Tensor row_scale, Tensor weight, Tensor? scale, Tensor? bias, Tensor? low, Tensor? high, "
    "ScalarType dtype) -> Tensor",
)
def _scaled(rows: Tensor, row_scale: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return _scaled_product(rows, row_scale, weight, *others)


def _scaled_product(
    rows: Tensor,
    row_scale: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """(rows weight') row_scale scale' + bias + low high': (M, K) and (N, K) int8, (M, 1) and (N, 1) float32, (N,),
    (M, r) and (N, r) -> (M, N)."""
    with_kernel = rows.is_cuda and (low is None or (low.shape[1] <= LARGEST_RANK and low.element_size() == 2))
    if with_kernel and (kernel := _kernel_on(rows.device)):
        with torch.cuda.device(rows.device):
            y: Tensor = kernel.scaled_product(rows, row_scale, weight, scale, bias, low, high, dtype)
        return y
    y = torch._int_mm(rows, weight.t()) * row_scale
    if scale is not None:
        y.mul_(scale.t())
    if bias is not None:
        y.add_(bias)
    if low is not None and high is not None:
        y.add_(low @ high.t())
    return y.to(dtype)


@_scaled.register_fake
def _(rows: Tensor, row_scale: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=others[-1])


@torch.library.custom_op(
    "sd_scripts::int8_scaled_back",
    mutates_args=(),
    schema="(Tensor rows, Tensor row_scale, Tensor weight, Tensor? low, Tensor? down, ScalarType dtype) -> Tensor",
)
def _scaled_back(
    rows: Tensor, row_scale: Tensor, weight: Tensor, low: Tensor | None, down: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """(rows weight) row_scale + low down: (M, out) and (out, in) int8, (M, 1) float32, (M, r) and (r, in) -> (M, in).
    Products of int8 are quick with the weight transposed only."""
    high = None if down is None else down.t()
    return _scaled_product(rows, row_scale, transposed(weight), None, None, low, high, dtype)


@_scaled_back.register_fake
def _(rows: Tensor, row_scale: Tensor, weight: Tensor, *others: Any) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1], dtype=others[-1])


@cache
def _kernel_on(device: torch.device) -> Any:
    """Return the module of the kernel for this device, or None to use plain PyTorch."""
    rows = torch.ones(FEWEST_ROWS, MULTIPLE, dtype=torch.int8, device=device)
    scale = torch.ones(FEWEST_ROWS, 1, device=device)
    return built_for(
        device,
        "sd_scripts.library.quantization.int8_kernel",
        lambda kernel: kernel.scaled_product(rows, scale, rows, scale, None, None, None, torch.bfloat16),
        "products in int8 take longer",
    )


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
