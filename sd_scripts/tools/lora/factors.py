"""Factors of a layer as tools compute with them, and as a file has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sd_scripts.formats.models.lora_keys import DOWN, UP
from sd_scripts.networks.adapter import Tensors, layer_names, read_layer
from sd_scripts.networks.adapters.lora import Pair


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer's weight, derived from its factors."""

    out: int
    into: tuple[int, ...]
    """(in,) of a Linear, (in, kh, kw) of a convolution."""

    @classmethod
    def of(cls, pair: Pair) -> Shape:
        return cls(pair.up.shape[0], tuple(pair.down.shape[1:]))

    @property
    def has_kernel(self) -> bool:
        """Return whether it is a convolution with a kernel above 1x1."""
        return len(self.into) == 3 and self.into[1:] != (1, 1)


def flat(pair: Pair) -> tuple[Tensor, Tensor]:
    """Return up (out, r) and down (r, in) in float32."""
    return pair.up.float().flatten(1), pair.down.float().flatten(1)


def file_tensors(name: str, up: Tensor, down: Tensor, alpha: float, shape: Shape) -> Tensors:
    """Return a file's tensors of a layer with these factors, (out, r) and (r, in)."""
    ones = (1,) * (len(shape.into) - 1)
    return {
        f"{name}.{DOWN}": down.reshape(-1, *shape.into).contiguous(),
        f"{name}.{UP}": up.reshape(shape.out, -1, *ones).contiguous(),
        f"{name}.alpha": torch.tensor(alpha),
    }


def ranks_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, float]]:
    """Return rank and alpha of each layer of a file, whatever its kind."""
    found = {}
    for name in layer_names(tensors):
        if layer := read_layer(tensors, name):
            kind, own = layer
            rank, _ = kind.rank_in_file(own, ())
            found[name] = (rank.dim, rank.alpha)
    return found
