"""Frozen weights in fp8: e4m3 with a scale per row, multiplied in the model's dtype or in fp8.

Our own scales are powers of two, so that applying one is exact; a file's are applied in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.library.quantization.dequantizing import E4M3, dequantized_rows
from sd_scripts.library.quantization.quantized import (
    MULTIPLE,
    SCALE,
    WeightFormat,
    define_product,
    dequantized,
    format_of,
    hold_,
    transposed,
)

STORAGE = E4M3
E4M3_MAX = 448.0
"""Largest value of e4m3."""
FAST_ACCUM = True
"""use_fast_accum of torch._scaled_mm: without it row-wise products are slow on Hopper; its error is far below that of
rounding to e4m3."""


@dataclass(frozen=True, kw_only=True)
class Fp8(WeightFormat):
    """e4m3 with a scale per row, (out, 1) float32."""

    compute: bool = False
    """Whether to multiply in fp8 as well."""
    exact: bool = True
    """Whether the scales are powers of two, exact in every dtype: ours are, a file's need not be."""

    derived = ("weight_transposed",)  # (in, out) e4m3 or None

    def quantize(self, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """A weight that is e4m3 already keeps its values."""
        if weight.dtype == STORAGE:
            return weight, {SCALE: torch.ones(len(weight), 1, device=weight.device)}
        largest = weight.abs().amax(1, keepdim=True).float()
        exponent = torch.frexp(largest / E4M3_MAX).exponent
        scale = torch.ldexp(torch.ones_like(largest), exponent)
        return (weight.float() / scale).to(STORAGE), {SCALE: scale}

    def dequantize(self, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return dequantized_rows(weight, scale, dtype)

    def product(self, x: Tensor, layer: nn.Linear) -> Tensor:
        weight, scale = layer.weight, layer.weight_scale
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        if self.compute:
            y = _QuantizedProduct.apply(x, weight, scale, layer.weight_transposed)
            return y if bias is None else y + bias
        if x.dtype == torch.float16:  # the unscaled product could overflow
            y = fp8_product(x, weight, scale, None)
            return y if bias is None else y + bias
        y = fp8_product(x, weight, None, None)
        if not self.exact:
            y = y * scale.view(-1)  # type: ignore[operator]
            return (y if bias is None else y + bias).to(x.dtype)
        rows = scale.view(-1).to(x.dtype)  # type: ignore[operator]
        return y * rows if bias is None else torch.addcmul(bias, y, rows)


fp8_product = define_product("fp8", dequantized_rows)


@torch.no_grad()
def quantize_(
    layer: nn.Linear, dtype: torch.dtype, *, compute: bool = False, keep_transposed: bool = False
) -> nn.Linear:
    """Quantize the weight of `layer` to e4m3, in place; inputs and outputs are in `dtype`.

    `compute` also multiplies in fp8; `keep_transposed` then keeps a transposed copy for backward, instead of
    transposing each time.
    """
    known = format_of(layer)
    weight: Tensor = layer.weight
    if isinstance(known, Fp8):
        scale: Any = layer.weight_scale
        exact = known.exact
    else:
        weight, made = Fp8().quantize(dequantized(layer) if known else weight.detach())
        scale, exact = made[SCALE], True
    held = {SCALE: scale, "weight_transposed": transposed(weight) if compute and keep_transposed else None}
    return hold_(layer, Fp8(compute=compute, exact=exact), dtype, weight, held)


def scale_(layer: nn.Linear, scale: Tensor, dtype: torch.dtype) -> None:
    """Multiply the e4m3 weight of `layer`, in place, by a file's `scale`: one number or one per row."""
    assert layer.weight.dtype == STORAGE, "only e4m3 weights have scales"
    rows = scale.float().view(-1, 1).expand(len(layer.weight), 1).contiguous()
    hold_(layer, Fp8(exact=False), dtype, layer.weight, {SCALE: rows})


class _QuantizedProduct(torch.autograd.Function):
    """A product in fp8: x and the output's gradient are quantized by rows, which the compiler fuses."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, weight_transposed: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(weight, scale, weight_transposed)
        y = _scaled_product(*quantized_rows(x.flatten(0, -2)), weight, scale)
        return y.to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weight, scale, weight_transposed = ctx.saved_tensors
        rows, row_scale = quantized_rows(grad.flatten(0, -2) * scale.view(-1).to(grad.dtype))
        if weight_transposed is None:
            x_grad = torch.ops.sd_scripts.fp8_scaled_back(rows, row_scale, weight)
        else:
            x_grad = _scaled_product(rows, row_scale, weight_transposed)
        return x_grad.to(grad.dtype).unflatten(0, grad.shape[:-1]), None, None, None


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize (M, K) to e4m3 (M, K) and scales (M, 1) float32, with the largest value of each row at E4M3_MAX."""
    largest = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12)
    return (x.float() * (E4M3_MAX / largest)).to(STORAGE), largest / E4M3_MAX


def _scaled_product(rows: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """(M, K) e4m3, (M, 1), (N, K) e4m3, (N, 1) -> (M, N) bf16."""
    scales = torch.ones(1, len(weight), device=rows.device) if scale is None else scale.t()
    return torch._scaled_mm(
        rows, weight.t(), row_scale, scales, out_dtype=torch.bfloat16, use_fast_accum=FAST_ACCUM and rows.is_cuda
    )


@torch.library.custom_op(
    "sd_scripts::fp8_scaled_back", mutates_args=(), schema="(Tensor rows, Tensor row_scale, Tensor weight) -> Tensor"
)
def _scaled_back(rows: Tensor, row_scale: Tensor, weight: Tensor) -> Tensor:
    """(M, out) e4m3, (M, 1), (out, in) e4m3 -> (M, in) bf16; fp8 products need the weight transposed."""
    return _scaled_product(rows, row_scale, transposed(weight))


@_scaled_back.register_fake
def _(rows: Tensor, row_scale: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1], dtype=torch.bfloat16)


def compute_problem(device: torch.device) -> str | None:
    """Return why this device cannot multiply in fp8, as a sentence, or None."""
    if device.type == "cuda":
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        if capability >= (8, 9):
            return None
        return f"fp8_compute: {name} cannot multiply in fp8; turn it off, and turn fp8_base_unet on to save memory"
    if device.type == "cpu" and _multiplies(device):
        return None
    return "fp8_compute: needs a GPU that multiplies in fp8 (RTX 40, RTX 50, H100 and newer); turn it off"


def _multiplies(device: torch.device) -> bool:
    try:
        rows, row_scale = quantized_rows(torch.ones(MULTIPLE, MULTIPLE, device=device))
        _scaled_product(rows, row_scale, rows, row_scale)
    except (RuntimeError, NotImplementedError):
        return False
    return True
