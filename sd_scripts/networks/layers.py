"""Base classes of adapted layers, drop-in replacements for plain ones, so that hooks and compile see plain modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.kernels.geglu import geglu
from sd_scripts.library.quantization.quantized import compute_dtype, frozen_linear, share_frozen


@dataclass(frozen=True, kw_only=True)
class Dropouts:
    """Dropout probabilities in training: of single low-rank values, whole ranks and whole layers."""

    neuron: float = 0.0
    rank: float = 0.0
    module: float = 0.0

    def __call__(self, h: Tensor) -> Tensor:
        """Apply dropout to (B, ..., r); masks are tensors, so that one graph serves every outcome."""
        if self.neuron:
            h = F.dropout(h, self.neuron)
        if self.rank:
            shape = (h.shape[0], *[1] * (h.ndim - 2), h.shape[-1])
            h = h * (torch.rand(shape, device=h.device) >= self.rank).to(h.dtype) / (1 - self.rank)
        if self.module:
            h = h * (torch.rand((), device=h.device) >= self.module).to(h.dtype)
        return h

    def any(self) -> bool:
        return bool(self.neuron or self.rank or self.module)


class AdaptedLinear(nn.Linear):
    """A Linear with frozen weights, which may be quantized, for an adapter to add to."""

    row_noise: Tensor | None
    """(out,) float32: standard deviation of the noise added to the weight's rows in training (see Perturbation)."""

    def __init__(self, base: nn.Linear, dropouts: Dropouts):
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        share_frozen(self, base)
        self.register_buffer("row_noise", None, persistent=False)
        self.dropouts = dropouts
        self.train(base.training)

    def parameter(self, *shape: int) -> nn.Parameter:
        """Return a new parameter in the dtype that the layer computes in."""
        return nn.Parameter(self.weight.new_empty(shape, dtype=compute_dtype(self)))

    def base(self, x: Tensor) -> Tensor:
        """Compute (..., in) -> (..., out) without the adapter."""
        y = frozen_linear(x, self)
        if self.training and self.row_noise is not None:
            noise = torch.randn(self.out_features, self.in_features, device=x.device, dtype=x.dtype)
            y = y + F.linear(x.detach(), noise * self.row_noise[:, None].to(x.dtype))
        return y

    def project_geglu(self, x: Tensor) -> Tensor:
        """Apply the layer, and return the geglu of its output."""
        return geglu(self(x))

    def project_split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        """Apply the layer, and split its output into `widths`."""
        return self(x).split(widths, dim=-1)

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        """Apply layers of this class to one input; a kind that can share work between them overrides it."""
        return [layer(x) for layer in layers]


class AdaptedConv2d(nn.Conv2d):
    """A convolution with frozen weights, for an adapter to add to."""

    def __init__(self, base: nn.Conv2d, dropouts: Dropouts):
        nn.Module.__init__(self)
        for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"):
            setattr(self, name, getattr(base, name))
        self.transposed, self.output_padding, self.padding_mode = False, (0, 0), base.padding_mode
        self._reversed_padding_repeated_twice = base._reversed_padding_repeated_twice
        self.weight, self.bias = base.weight, base.bias
        self.dropouts = dropouts
        self.train(base.training)


def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Apply several Linears to one input, such as q, k and v, which adapters of one kind may do together."""
    first = layers[0]
    hooked = not torch.compiler.is_compiling() and any(layer._forward_hooks for layer in layers)
    if isinstance(first, AdaptedLinear) and all(type(layer) is type(first) for layer in layers) and not hooked:
        return first.project_together(layers, x)
    return [layer(x) for layer in layers]


def project_split(layer: nn.Module, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
    """Apply a Linear whose outputs are adjacent, such as q, k and v: (..., in) -> (..., width) each."""
    return layer.project_split(x, widths) if isinstance(layer, AdaptedLinear) else layer(x).split(widths, dim=-1)


def project_geglu(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a Linear (..., in) -> (..., 2F), and return the geglu of its output, (..., F)."""
    return layer.project_geglu(x) if isinstance(layer, AdaptedLinear) else geglu(layer(x))
