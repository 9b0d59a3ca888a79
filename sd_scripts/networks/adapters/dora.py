"""LoRA with trained norms of the weight's rows or columns (DoRA), and LoRA of convolutions in Tucker form.

DoRA: Liu et al. 2024, https://arxiv.org/abs/2402.09353. Keys in files are those of LyCORIS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.networks.adapter import Adapter, register
from sd_scripts.networks.adapters.lora import DOWN, UP, Lora
from sd_scripts.networks.targets import is_conv
from sd_scripts.networks.update_adapter import NORMS, Shapes, UpdateAdapter, kaiming_uniform
from sd_scripts.networks.updates import FactoredUpdate

MID = "lora_mid.weight"


class LowRankUpdate(FactoredUpdate):
    """up · down, or in Tucker form up · mid · down, where mid (r, r, kh, kw) has the kernel and down is 1x1."""

    def factors(self) -> tuple[Tensor, Tensor]:
        up, down = self.parts(UP, DOWN)
        return up.flatten(1), down if down.ndim == 2 else down.flatten(1)

    def plain_factors(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        up, down = self.parts(UP, DOWN)
        return (up, down) if up.ndim == 2 else None

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


@register
class Dora(UpdateAdapter):
    kind = "dora"
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

    @classmethod
    def rank_of(cls, parts: Mapping[str, Tensor]) -> int | None:
        return len(parts[DOWN])

    def start(self, ending: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        return None if ending == UP else kaiming_uniform(shape, generator)
