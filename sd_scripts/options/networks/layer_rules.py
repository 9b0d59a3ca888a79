"""Per-layer rules of a family: rank, alpha, learning rate and output splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import nn

Warn = Callable[[str], None]


class Rank(NamedTuple):
    """Rank and alpha; `dim` 0 does not adapt the layer, `alpha` 0 means the rank."""

    dim: int
    alpha: float


class Rate(NamedTuple):
    """A learning rate and the suffix of its group's name: `_block4`."""

    lr: float
    suffix: str = ""


class Rules:
    """Rules that treat all layers alike; families override them. `name` is the layer's name in files."""

    adapts_conv = False
    """Whether convolutions get ranks without conv_dim."""
    split_option = ""
    """The option that turns `split_dims` on, for messages."""

    def check(self, model: nn.Module) -> None:
        """Raise ValueError if the rules refer to blocks that the model does not have."""

    def rank(self, name: str, conv: bool, default: Rank) -> Rank:
        return default

    def rate(self, name: str, default: float) -> Rate | None:
        """Return the layer's learning rate, or None to leave the layer out."""
        return Rate(default)

    def split_dims(self, name: str, layer: nn.Module) -> tuple[int, ...]:
        """Return the output sizes of splits that get an adapter of their own; () means one for all."""
        return ()
