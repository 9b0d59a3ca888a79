"""Frozen Linears whose weights are quantized: the common part of the formats fp8.py, int8.py and nf4.py.

A layer stores its weight in the parameter `weight` and the buffers of its format, so that block swap, moves between
devices and adapters that share the weight are independent of formats. torchao's weights are subclasses of tensors
instead, which cannot be views of the slots that blocks share, and its formats for inference have no backward pass.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import host_value

MULTIPLE = 16
"""Widths of quantized layers are multiples of it, as products in 8 bits need."""
SCALE = "weight_scale"
"""The buffer with the scales of a weight."""


class WeightFormat(ABC):
    """How frozen Linears store their weights, and multiply by them."""

    buffers: ClassVar[tuple[str, ...]] = (SCALE,)
    """A layer's buffers besides its weight."""
    derived: ClassVar[tuple[str, ...]] = ()
    """The same, computed from the others: no state dict has it."""

    @abstractmethod
    def quantize(self, weight: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return a layer's stored form of a `weight` (out, in), and its buffers by name."""

    @abstractmethod
    def dequantize(self, weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight (out, in) in `dtype`, from a layer's stored form of it and its scales."""

    @abstractmethod
    def product(self, x: Tensor, layer: nn.Linear) -> Tensor:
        """Apply a layer, (..., in) -> (..., out), differentiable in x."""

    def updated_product(self, x: Tensor, layer: nn.Linear, down: Tensor, up: Tensor) -> Tensor | None:
        """Apply a layer and add (x down') up', down (r, in) and up (out, r), in one kernel; None if there is none."""
        return None


class QuantizedLinear(nn.Linear):
    """A frozen Linear with a quantized weight."""

    weight_format: WeightFormat
    compute_dtype: torch.dtype

    def forward(self, x: Tensor) -> Tensor:
        return frozen_linear(x, self)


def fits(layer: nn.Module) -> bool:
    """Return whether the weight of a layer can be quantized."""
    return isinstance(layer, nn.Linear) and not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)


def format_of(layer: nn.Module) -> WeightFormat | None:
    """Return the format of a layer's weight, or None if it is not quantized."""
    weight_format: WeightFormat | None = getattr(layer, "weight_format", None)
    return weight_format


@torch.no_grad()
def quantize_(layer: nn.Linear, weight_format: WeightFormat, dtype: torch.dtype) -> nn.Linear:
    """Quantize the weight of `layer`, in place; inputs and outputs are in `dtype`. A weight that has this kind of
    format already, as its file may have it, is not rounded again."""
    known = format_of(layer)
    if type(known) is type(weight_format):
        return layer
    weight = dequantized(layer) if known else layer.weight.detach()
    return hold_(layer, weight_format, dtype, *weight_format.quantize(weight))


def dequantized(layer: nn.Linear) -> Tensor:
    """Return the weight of a layer that is on the device, quantized or not, (out, in) float32."""
    known = format_of(layer)
    return known.dequantize(layer.weight, layer.weight_scale, torch.float32) if known else layer.weight.float()  # type: ignore[arg-type]


def empty_weight(layer: nn.Module) -> Tensor:
    """Return a tensor without values that has the shape of a layer's weight, (out, in, ...), however it is stored."""
    if isinstance(layer, nn.Linear):
        return torch.empty(layer.out_features, layer.in_features, device="meta")
    return torch.empty_like(layer.weight, device="meta")  # type: ignore[arg-type]


@torch.no_grad()
def stored_weight(layer: nn.Linear, device: torch.device) -> Tensor:
    """Return the weight of a layer, quantized or not, also if its block is swapped out: (out, in) float32."""
    known = format_of(layer)
    weight = host_value(layer.weight).detach().to(device)
    if known is None:
        return weight.float()
    scale: Tensor = layer.weight_scale  # type: ignore[assignment]
    return known.dequantize(weight, host_value(scale).to(device), torch.float32)


def hold_(
    layer: nn.Linear,
    weight_format: WeightFormat,
    dtype: torch.dtype,
    weight: Tensor,
    buffers: Mapping[str, Tensor | None],
) -> nn.Linear:
    """Give `layer` a weight that is quantized already, in place."""
    if known := format_of(layer):
        for name in (*known.buffers, *known.derived):
            delattr(layer, name)
    layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    layer.__class__ = QuantizedLinear
    for name in (*weight_format.buffers, *weight_format.derived):
        layer.register_buffer(name, buffers.get(name), persistent=name in weight_format.buffers)
    layer.weight_format, layer.compute_dtype = weight_format, dtype  # type: ignore[assignment]
    return layer


@torch.no_grad()
def add_(layer: nn.Linear, change: Tensor) -> None:
    """Add `change`, (out, in) float32, to a quantized weight, which is quantized again."""
    known = format_of(layer)
    assert known
    hold_(layer, known, compute_dtype(layer), *known.quantize(dequantized(layer) + change))


def frozen_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a frozen Linear, quantized or not, (..., in) -> (..., out), differentiable in x."""
    weight_format = format_of(layer)
    if weight_format is None:
        return F.linear(x, layer.weight, layer.bias)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return weight_format.product(x, layer)


def updated_linear(x: Tensor, layer: nn.Linear, down: Tensor, up: Tensor) -> Tensor | None:
    """Apply a frozen Linear and the update of a LoRA in one kernel; None if its format, or another dtype, has none."""
    weight_format = format_of(layer)
    if weight_format is None:
        return None
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return weight_format.updated_product(x, layer, down, up) if x.dtype == down.dtype == up.dtype else None


def compute_dtype(layer: nn.Module) -> torch.dtype:
    """Return the dtype of the inputs and outputs of `layer`; its weights may have a narrower one."""
    dtype: torch.dtype = getattr(layer, "compute_dtype", layer.weight.dtype)  # type: ignore[arg-type]
    return dtype


def share_frozen(layer: nn.Linear, base: nn.Linear) -> None:
    """Give `layer` the weights of `base`, the same objects: moving them moves them for both."""
    layer.weight, layer.bias = base.weight, base.bias
    layer.compute_dtype = compute_dtype(base)  # type: ignore[assignment]
    if known := format_of(base):
        layer.weight_format = known  # type: ignore[assignment]
        for name in (*known.buffers, *known.derived):
            layer.register_buffer(name, getattr(base, name), persistent=name in known.buffers)


Dequantize = Callable[[Tensor, Any, torch.dtype], Tensor]
"""The stored weight of a layer, its scales or None, dtype -> the weight (out, in)."""


def define_product(name: str, dequantize: Dequantize, values_per_column: int = 1) -> Callable[..., Tensor]:
    """Define sd_scripts::<name>_product, (x, weight, scale, bias) -> (..., out), differentiable in x, and return it.

    It multiplies in the dtype of x. A custom operator, since the compiler would keep the dequantized weight of every
    layer for backward. `values_per_column`: how many values a column of the quantized weight stores.
    """

    @torch.library.custom_op(
        f"sd_scripts::{name}_product",
        mutates_args=(),
        schema="(Tensor x, Tensor weight, Tensor? scale, Tensor? bias) -> Tensor",
    )
    def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.linear(x, dequantize(weight, scale, x.dtype), bias)

    @torch.library.custom_op(
        f"sd_scripts::{name}_product_back",
        mutates_args=(),
        schema="(Tensor grad, Tensor weight, Tensor? scale) -> Tensor",
    )
    def product_back(grad: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
        return grad @ dequantize(weight, scale, grad.dtype)

    @product.register_fake
    def _(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        return x.new_empty(*x.shape[:-1], weight.shape[0])

    @product_back.register_fake
    def _(grad: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
        return grad.new_empty(*grad.shape[:-1], weight.shape[1] * values_per_column)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return product_back(grad, *ctx.saved_tensors), None, None, None

    product.register_autograd(gradient, setup_context=keep)
    return product


def transposed(weight: Tensor) -> Tensor:
    """Transpose (out, in), one byte each, to a contiguous (in, out)."""
    if weight.is_cuda and importlib.util.find_spec("triton"):
        from sd_scripts.library.quantization.byte_kernels import transposed_bytes

        return transposed_bytes(weight.detach().view(torch.uint8)).view(weight.dtype)
    return weight.detach().view(torch.uint8).t().contiguous().view(weight.dtype)
