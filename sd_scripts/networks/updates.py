"""What adapters other than plain LoRA add to a layer's weight, and the layers that compute with it.

An `Update` is a change of a weight that is rarely formed: layers apply it to their input. With weight decomposition
(DoRA, Liu et al. 2024, https://arxiv.org/abs/2402.09353) each row or column of the changed weight also has a trained
norm. The norm that it has before comes from the parts too: |W + D|^2 = |W|^2 + 2 <W, D> + |D|^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import host_value
from sd_scripts.library.kernels.gained_output import gained_output
from sd_scripts.library.quantization import quantized
from sd_scripts.library.quantization.quantized import compute_dtype, dequantized, format_of, frozen_linear
from sd_scripts.networks.layers import AdaptedConv2d, AdaptedLinear, Dropouts

Axis = Literal["out", "in"]
"""Whether each output (a row of the weight) or each input (a column) has a trained norm."""


def exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norms: float32, or float64 for tensors in that."""
    return torch.promote_types(dtype, torch.float32)


def across(axis: Axis) -> int:
    """Return the dimension of a matrix (out, in) over which norms are taken."""
    return 1 if axis == "out" else 0


class Update(nn.Module):
    """A change of a weight (out, in) or (out, in, kh, kw), made of parts that are named as in files."""

    def __init__(self, parts: Mapping[str, Tensor]):
        super().__init__()
        for ending, part in parts.items():
            if not isinstance(part, nn.Parameter):
                part = nn.Parameter(part, requires_grad=False)
            self.register_parameter(_attribute(ending), part)

    def part(self, ending: str) -> Tensor | None:
        return self._parameters.get(_attribute(ending))

    def parts(self, *endings: str) -> tuple[nn.Parameter, ...]:
        """Return parts that are there."""
        return tuple(getattr(self, _attribute(ending)) for ending in endings)

    def weight(self) -> Tensor:
        """Return the change itself, (out, in), (out, in · kh · kw) or (out, in, kh, kw)."""
        raise NotImplementedError

    def output(self, x: Tensor) -> Tensor:
        """Apply the change to the input of a Linear, (..., in) -> (..., out)."""
        return F.linear(x, self.weight())

    def add_to(self, layer: UpdatedLinear, x: Tensor) -> Tensor:
        """Apply a Linear and the change, (..., in) -> (..., out)."""
        return layer.base(x) + layer.dropped(self.output(x))

    def convolve(self, x: Tensor, conv: nn.Conv2d) -> Tensor | None:
        """Apply the change to the input of a convolution, or return None if it has to be formed for that."""
        return None

    def overlap(self, layer: nn.Linear, axis: Axis) -> Tensor:
        """Return <W, D> of each row or column of the weight of `layer` and the change."""
        return (dense_weight(layer) * self.weight()).sum(across(axis), dtype=exact(layer.weight.dtype))

    def squares(self, axis: Axis) -> Tensor:
        """Return |D|^2 of each row or column of the change of a Linear."""
        return self.weight().to(exact(self.weight().dtype)).square().sum(across(axis))


def _attribute(ending: str) -> str:
    return ending.replace(".", "_")


class FactoredUpdate(Update):
    """An update that is the product of an up (out, r) and a down (r, in) or (r, in, kh, kw)."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return up and down."""
        raise NotImplementedError

    def weight(self) -> Tensor:
        up, down = self.factors()
        return up @ down.flatten(1)

    def output(self, x: Tensor) -> Tensor:
        up, down = self.factors()
        return F.linear(F.linear(x, down), up)

    def convolve(self, x: Tensor, conv: nn.Conv2d) -> Tensor | None:
        up, down = self.factors()
        kernel = down.view(len(down), -1, *conv.kernel_size)
        return F.conv2d(conv._conv_forward(x, kernel, None), up[:, :, None, None])

    def overlap(self, layer: nn.Linear, axis: Axis) -> Tensor:
        up, down = self.factors()
        if axis == "out":
            return (up * _base_product(down, layer).t()).sum(1, dtype=exact(up.dtype))
        return (down * (up.t() @ dense_weight(layer))).sum(0, dtype=exact(up.dtype))

    def squares(self, axis: Axis) -> Tensor:
        up, down = (factor.to(exact(factor.dtype)) for factor in self.factors())
        if axis == "out":
            return ((up @ (down @ down.t())) * up).sum(1)
        return (((up.t() @ up) @ down) * down).sum(0)


def _base_product(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a frozen Linear without its bias."""
    if layer.weight.dtype == x.dtype:
        return F.linear(x, layer.weight)
    y = frozen_linear(x, layer)
    return y if layer.bias is None else y - layer.bias


def dense_weight(layer: nn.Module) -> Tensor:
    """Return the weight of a layer, (out, in, ...), as numbers."""
    weight = dequantized(layer) if isinstance(layer, nn.Linear) and format_of(layer) else layer.weight
    assert isinstance(weight, Tensor)
    return weight.to(compute_dtype(layer))


def stored_weight(layer: nn.Module) -> Tensor:
    """Return the weight of a layer, (out, in, ...), as numbers, also if its block is swapped out."""
    device: torch.device = layer.weight.device  # type: ignore[assignment, union-attr]
    if isinstance(layer, nn.Linear):
        return quantized.stored_weight(layer, device).to(compute_dtype(layer))
    return host_value(layer.weight).detach().to(device, compute_dtype(layer))  # type: ignore[arg-type]


class Magnitudes(nn.Module):
    """The trained norms of the rows or columns of a changed weight (W + D): it is scaled to have these."""

    squares: Tensor
    """|W|^2 of each, (out,) or (in,)."""
    gains: nn.Parameter | None
    """The factors of the outputs, where they are computed outside of the layer (gains.py)."""

    def __init__(self, base: nn.Linear | nn.Conv2d, axis: Axis):
        super().__init__()
        self.axis: Axis = axis
        weight = stored_weight(base)
        matrix = _matrix(weight.to(exact(weight.dtype)), axis)
        self.register_buffer("squares", matrix.square().sum(1), persistent=False)
        shape = [1] * weight.ndim
        shape[1 - across(axis)] = len(matrix)
        self.norms = nn.Parameter(self.squares.sqrt().view(shape))
        self.register_parameter("gains", None)

    def gain(self, update: Update, layer: nn.Linear) -> Tensor:
        """Return the factors of the outputs or inputs of a Linear, (out,) or (in,)."""
        if self.gains is not None:
            return self.gains
        change = 2 * update.overlap(layer, self.axis) + update.squares(self.axis)
        return self.norms.flatten() / _norm(self.squares + change)

    def scaled(self, weight: Tensor) -> Tensor:
        """Return a changed weight (out, in, ...) with its trained norms."""
        matrix = _matrix(weight.to(self.norms.dtype), self.axis)
        return weight * (self.norms / _norm(matrix.square().sum(1)).view(self.norms.shape)).to(weight.dtype)


def _matrix(weight: Tensor, axis: Axis) -> Tensor:
    """Return a weight as one row for each of its norms."""
    return (weight if axis == "out" else weight.transpose(0, 1)).flatten(1)


def _norm(squares: Tensor) -> Tensor:
    """Return norms that can be divided by."""
    eps = torch.finfo(squares.dtype).eps
    return squares.clamp_min(eps**2).sqrt() + eps


def norms_of(weight: Tensor, axis: Axis) -> Tensor:
    """Return the norms of the rows or columns of a weight (out, in, ...)."""
    return _matrix(weight, axis).norm(dim=1)


def decomposed(norms: Tensor, weight: Tensor) -> Tensor:
    """Return a changed weight (out, in, ...) scaled to the `norms` of its rows or columns, as files have them."""
    axis: Axis = "out" if norms.shape[0] == weight.shape[0] and norms.shape[1:].numel() == 1 else "in"
    shape = [1] * weight.ndim
    shape[1 - across(axis)] = norms.numel()
    return weight * (norms.flatten() / _norm(_matrix(weight, axis).square().sum(1))).view(shape)


class UpdatedLinear(AdaptedLinear):
    """y = W x + b + D x, or the same with trained norms: diag(g) (W + D) x + b or (W + D) diag(g) x + b."""

    def __init__(self, base: nn.Linear, update: Update, dropouts: Dropouts, magnitudes: Magnitudes | None):
        super().__init__(base, dropouts)
        self.update, self.magnitudes = update, magnitudes

    def forward(self, x: Tensor) -> Tensor:
        if self.magnitudes is None:
            return self.update.add_to(self, x)
        gain = self.magnitudes.gain(self.update, self)
        if self.magnitudes.axis == "out":
            return decomposed_output(self, self.base(x), self.update.output(x), gain)
        keep = _kept(self, x)
        x = x + x * ((gain - 1) if keep is None else keep * (gain - 1)).to(x.dtype)
        change = self.update.output(x)
        return self.base(x) + _dropped(self, change, keep)

    def dropped(self, change: Tensor) -> Tensor:
        """Apply dropout to the update's output."""
        return self.dropouts(change) if self.training and self.dropouts.any() else change


def decomposed_output(layer: AdaptedLinear, y: Tensor, change: Tensor, gain: Tensor) -> Tensor:
    """Return the output of a layer with trained norms of outputs, from the base's output and the update's."""
    keep = _kept(layer, y)
    if keep is None and torch.compiler.is_compiling():  # which rounds only the result
        product = y if layer.bias is None else y - layer.bias
        return gained_output(product + _dropped(layer, change, None), gain, layer.bias)
    more = ((gain - 1) if keep is None else keep * (gain - 1)).to(y.dtype)  # so small that rounding keeps the base's
    change = _dropped(layer, change, keep)
    product = y if layer.bias is None else y - layer.bias
    return y + change + more * (product + change)


def _kept(layer: AdaptedLinear, x: Tensor) -> Tensor | None:
    """Return 0 if the adapter of the whole layer is dropped in this step, else 1; None without such dropout."""
    if not (layer.training and layer.dropouts.module):
        return None
    return (torch.rand((), device=x.device) >= layer.dropouts.module).to(x.dtype)


def _dropped(layer: AdaptedLinear, change: Tensor, keep: Tensor | None) -> Tensor:
    if layer.training and layer.dropouts.any():
        change = replace(layer.dropouts, module=0.0)(change)
    return change if keep is None else change * keep


class UpdatedConv2d(AdaptedConv2d):
    """conv(x) with W + D in place of W. The change is formed where it has no smaller form, or with trained norms."""

    def __init__(self, base: nn.Conv2d, update: Update, dropouts: Dropouts, magnitudes: Magnitudes | None):
        super().__init__(base, dropouts)
        self.update, self.magnitudes = update, magnitudes

    def forward(self, x: Tensor) -> Tensor:
        change = self.update.convolve(x, self) if self.magnitudes is None else None
        if change is not None:
            return super().forward(x) + self._dropped(change)
        weight = self.weight + self.update.weight().view(self.weight.shape)
        if self.magnitudes is not None:
            weight = self.magnitudes.scaled(weight)
        if self.training and self.dropouts.any():
            return super().forward(x) + self._dropped(self._conv_forward(x, weight - self.weight, None))
        return self._conv_forward(x, weight, self.bias)

    def _dropped(self, change: Tensor) -> Tensor:
        return dropped_channels(change, self.dropouts) if self.training and self.dropouts.any() else change


def dropped_channels(change: Tensor, dropouts: Dropouts) -> Tensor:
    """Apply dropout to (B, C, H, W), whose channels stand for ranks."""
    if dropouts.neuron:  # on its own: aot_eager mistakes the strides of its gradient in a different order
        change = F.dropout(change, dropouts.neuron)
    return replace(dropouts, neuron=0.0)(change.movedim(1, -1)).movedim(-1, 1)
