"""LoRA layers: drop-in replacements for the layers they adapt, so that hooks and compile see plain modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.frozen_linear import compute_dtype, frozen_linear, share_frozen


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


class LoraLinear(nn.Linear):
    """y = x W + b + (x A) B, with alpha / rank already in B (see LoraNetwork.refresh)."""

    lora_down: nn.Parameter  # (r, in)
    lora_up: nn.Parameter  # (out, r)
    row_noise: Tensor | None
    """(out,) float32: standard deviation of the noise added to the weight's rows in training (see perturbation.py)."""

    def __init__(self, base: nn.Linear, rank: int, dropouts: Dropouts):
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        share_frozen(self, base)
        self.register_buffer("row_noise", None, persistent=False)
        dtype = compute_dtype(base)
        self.lora_down = nn.Parameter(base.weight.new_empty(rank, base.in_features, dtype=dtype))
        self.lora_up = nn.Parameter(base.weight.new_empty(base.out_features, rank, dtype=dtype))
        self.dropouts = dropouts
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.update(self.base(x), F.linear(x, self.lora_down))

    def base(self, x: Tensor) -> Tensor:
        """Compute (..., in) -> (..., out) without LoRA."""
        y = frozen_linear(x, self)
        if self.training and self.row_noise is not None:
            noise = torch.randn(self.out_features, self.in_features, device=x.device, dtype=x.dtype)
            y = y + F.linear(x.detach(), noise * self.row_noise[:, None].to(x.dtype))
        return y

    def update(self, y: Tensor, h: Tensor) -> Tensor:
        """Add the LoRA output of `h` (..., r) to the base's output `y` (..., out)."""
        if self.training and self.dropouts.any():
            h = self.dropouts(h)
        if torch.compiler.is_compiling():
            return y + F.linear(h, self.lora_up)  # the compiler fuses the sum with what follows
        flat = torch.addmm(y.flatten(0, -2), h.flatten(0, -2), self.lora_up.t())
        return torch.ops.aten._unsafe_view(flat, y.shape)  # a view would make later compiled blocks need another graph


class SplitLoraLinear(LoraLinear):
    """A Linear whose output splits, such as q, k and v, each have their own LoRA.

    Split i uses rows i·r to (i + 1)·r of down (n·r, in); its rows of up (out, r) are those of its outputs.
    """

    def __init__(self, base: nn.Linear, rank: int, dropouts: Dropouts, split_dims: tuple[int, ...]):
        super().__init__(base, rank, dropouts)
        assert sum(split_dims) == base.out_features, "split_dims must sum to the layer's outputs"
        self.split_dims = split_dims
        self.lora_down = nn.Parameter(self.lora_down.new_empty(len(split_dims) * rank, base.in_features))

    def update(self, y: Tensor, h: Tensor) -> Tensor:
        if self.training and self.dropouts.any():
            h = self.dropouts(h)
        lows, ups = h.chunk(len(self.split_dims), dim=-1), self.lora_up.split(self.split_dims)
        return y + torch.cat([F.linear(low, up) for low, up in zip(lows, ups, strict=True)], dim=-1)


class LoraConv2d(nn.Conv2d):
    """y = conv(x) + up(down(x)): down has the base's kernel, stride and padding, up is 1x1."""

    lora_down: nn.Parameter  # (r, in, kh, kw)
    lora_up: nn.Parameter  # (out, r, 1, 1)

    def __init__(self, base: nn.Conv2d, rank: int, dropouts: Dropouts):
        nn.Module.__init__(self)
        for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"):
            setattr(self, name, getattr(base, name))
        self.transposed, self.output_padding, self.padding_mode = False, (0, 0), base.padding_mode
        self._reversed_padding_repeated_twice = base._reversed_padding_repeated_twice
        self.weight, self.bias = base.weight, base.bias
        self.lora_down = nn.Parameter(base.weight.new_empty(rank, base.in_channels, *base.kernel_size))
        self.lora_up = nn.Parameter(base.weight.new_empty(base.out_channels, rank, 1, 1))
        self.dropouts = dropouts
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        h = self._conv_forward(x, self.lora_down, None)
        if self.training and self.dropouts.any():
            h = self.dropouts(h.movedim(1, -1)).movedim(-1, 1)
        return super().forward(x) + F.conv2d(h, self.lora_up)


LoraLayer = LoraLinear | LoraConv2d


def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Apply several Linears to one input, such as q, k and v, with one matrix product for their down projections."""
    if not all(isinstance(layer, LoraLinear) for layer in layers):
        return [layer(x) for layer in layers]
    lora: Sequence[LoraLinear] = layers  # type: ignore[assignment]
    low = F.linear(x, torch.cat([layer.lora_down for layer in lora]))
    parts = low.split([layer.lora_down.shape[0] for layer in lora], dim=-1)
    return [layer.update(layer.base(x), h) for layer, h in zip(lora, parts, strict=True)]
