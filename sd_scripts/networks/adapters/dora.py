"""LoRA with trained norms of the weight's rows or columns (DoRA), and LoRA of convolutions in Tucker form.

DoRA: Liu et al. 2024, https://arxiv.org/abs/2402.09353. Keys in files are LyCORIS'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.formats.models.lora_keys import DOWN, MID, NORMS, UP
from sd_scripts.library.kernels.gained_product import gained_product
from sd_scripts.networks.adapter import Adapter, register
from sd_scripts.networks.adapters.lora import Lora, LoraLinear
from sd_scripts.networks.folded.folding import FoldableLinear
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.targets import is_conv
from sd_scripts.networks.update_adapter import Shapes, UpdateAdapter, kaiming_uniform
from sd_scripts.networks.updates import FactoredUpdate, Magnitudes, decomposed_output


class LowRankUpdate(FactoredUpdate):
    """up · down, or in Tucker form up · mid · down, where mid (r, r, kh, kw) has the kernel and down is 1x1."""

    def factors(self) -> tuple[Tensor, Tensor]:
        up, down = self.parts(UP, DOWN)
        return up.flatten(1), down if down.ndim == 2 else down.flatten(1)

    def weight(self) -> Tensor:
        mid = self.part(MID)
        if mid is None:
            return super().weight()
        up, down = self.factors()
        return torch.einsum("or,rshw,si->oihw", up, mid, down)

    def convolve(self, x: Tensor, conv: nn.Conv2d) -> Tensor | None:
        mid = self.part(MID)
        if mid is None:
            return super().convolve(x, conv)
        up, down = self.parts(UP, DOWN)
        return F.conv2d(conv._conv_forward(F.conv2d(x, down), mid, None), up)


class DoraLinear(LoraLinear):
    """y = g (x W + (x A) B) + b, where g restores the trained norms of the rows of W + B A."""

    def __init__(self, base: nn.Linear, update: LowRankUpdate, dropouts: Dropouts, magnitudes: Magnitudes):
        down, up = update.parts(DOWN, UP)
        super().__init__(base, len(down), dropouts)
        self.lora_down, self.lora_up = down, up
        self.update_parts, self.magnitudes = update, magnitudes

    def forward(self, x: Tensor) -> Tensor:
        if self.is_folded(1):
            return self.folded([self], x)[0]
        gain = self.magnitudes.gain(self.update_parts, self)
        return decomposed_output(self, self.base(x), self.update_parts.output(x), gain)

    def fold_of(self, layers: Sequence[FoldableLinear], x: Tensor, **how: Any) -> list[Tensor]:
        """Compute with the layers' gains, which are computed outside (gains.py)."""
        own: Sequence[DoraLinear] = layers  # type: ignore[assignment]
        assert self.joint is not None
        gains, downs, ups = zip(*((x.magnitudes.gains, x.lora_down, x.lora_up) for x in own), strict=True)
        return gained_product(x, self.joint, self.bias, gains, downs, ups, **how)

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        dora: Sequence[DoraLinear] = layers  # type: ignore[assignment]
        if dora[0].is_folded(len(dora)):
            return dora[0].folded(dora, x, [layer.out_features for layer in dora])
        return [layer(x) for layer in dora]


@register
class Dora(UpdateAdapter):
    kind = "dora"
    continues = ("lora",)
    endings = (DOWN, UP, MID, NORMS)
    forms = ((DOWN, UP, NORMS), (DOWN, UP, MID))
    update_class = LowRankUpdate
    scaled = (UP,)

    @classmethod
    def for_layer(cls, layer: nn.Module, options: Mapping[str, Any]) -> type[Adapter]:
        """Return plain LoRA for a layer without trained norms or a kernel."""
        return cls if options.get("axis") or is_conv(layer) else Lora

    @classmethod
    def shapes(cls, weight: Tensor, rank: int, options: Mapping[str, Any]) -> Shapes:
        out, into, *kernel = weight.shape
        ones = (1,) * len(kernel)
        if options.get("tucker") and any(size > 1 for size in kernel):
            return {DOWN: (rank, into, *ones), MID: (rank, rank, *kernel), UP: (out, rank, *ones)}
        return {DOWN: (rank, into, *kernel), UP: (out, rank, *ones)}

    def make_layer(self, base: nn.Linear | nn.Conv2d, dropouts: Dropouts) -> nn.Module:
        if isinstance(base, nn.Linear) and self.magnitudes and self.magnitudes.axis == "out":
            assert isinstance(self.update, LowRankUpdate)
            return DoraLinear(base, self.update, dropouts, self.magnitudes)
        return super().make_layer(base, dropouts)

    @classmethod
    def rank_of(cls, parts: Mapping[str, Tensor]) -> int | None:
        return len(parts[DOWN])

    def start(self, ending: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        return None if ending == UP else kaiming_uniform(shape, generator)
