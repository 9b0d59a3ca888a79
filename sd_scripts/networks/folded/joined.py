"""Layers with the same input, such as q, k and v, whose base products are one product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import is_swapped
from sd_scripts.library.quantization.quantized import compute_dtype
from sd_scripts.networks.layers import AdaptedLinear, Dropouts


class ChangedLinear(AdaptedLinear):
    """A Linear whose output the adapter changes once it is there."""

    joined: Tensor | None
    """Base weights of this layer and of those it projects together with, below each other."""
    joined_layers = 1

    def __init__(self, base: nn.Linear, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.register_buffer("joined", None, persistent=False)

    @property
    def joins(self) -> bool:
        """Whether `changed` is all that the layer does beside its base."""
        return True

    def changed(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the layer's output (..., out) from its input and the base's output."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.changed(x, self.base(x))

    @staticmethod
    def project_together(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        own: Sequence[ChangedLinear] = layers  # type: ignore[assignment]
        first = own[0]
        if first.joined is None or first.joined_layers != len(own):
            return [layer(x) for layer in own]
        outputs = F.linear(x, first.joined).split([layer.out_features for layer in own], dim=-1)
        return [layer.changed(x, y) for layer, y in zip(own, outputs, strict=True)]


@torch.no_grad()
def join(groups: Iterable[Sequence[nn.Module]]) -> None:
    """Put the base weights of each group into one matrix, of which they are views from here on; they must not move.

    `groups`: layers that project_together applies to one input.
    """
    for group in groups:
        layers = [layer for layer in group if isinstance(layer, ChangedLinear) and _can_join(layer)]
        if len(layers) < len(group) or len({type(layer) for layer in layers}) > 1:
            continue
        joined = torch.cat([layer.weight for layer in layers])
        for layer, rows in zip(layers, joined.split([layer.out_features for layer in layers]), strict=True):
            layer.weight.data = rows
        layers[0].joined, layers[0].joined_layers = joined, len(layers)


def _can_join(layer: ChangedLinear) -> bool:
    plain = layer.weight.dtype == compute_dtype(layer) and not is_swapped(layer.weight)
    return plain and layer.joins and layer.bias is None
