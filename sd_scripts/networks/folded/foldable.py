"""Layers that can compute in one matrix product with their base weight (library/kernels/folded_product.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sd_scripts.library.kernels.folded_product import BOTH
from sd_scripts.networks.layers import AdaptedLinear, Dropouts


class Tail(NamedTuple):
    """A part of a joint matrix that follows a parameter."""

    parameter: nn.Parameter
    place: Tensor
    moves: bool = False
    """Whether the parameter itself is there from then on."""
    factor: tuple[nn.Parameter, int] | None = None
    """A parameter and which of its values the part is multiplied by."""


class FoldableLinear(AdaptedLinear):
    """A Linear whose adapter is the product of two matrices, A (r, in) and B (out, r)."""

    joint: Tensor | None
    """Base weight and adapter of this layer, or of it and those it projects together with, in one matrix (folding.py).
    """
    joint_layers = 1
    ways = BOTH
    """Which of its products are joint ones."""
    fold_takes_memory = False
    """Whether the matrices that it computes with in one product are larger than its own."""

    def __init__(self, base: nn.Linear, dropouts: Dropouts):
        super().__init__(base, dropouts)
        self.register_buffer("joint", None, persistent=False)

    @property
    def foldable(self) -> bool:
        """Whether it can compute in one product with its base weight."""
        return True

    @property
    def folded_rank(self) -> int:
        """Rows of A."""
        raise NotImplementedError

    def tails(self, down: Tensor, up: Tensor) -> Iterator[Tail]:
        """Yield what to write into `down`, (r, in), and `up`, (out, r), which are 0."""
        raise NotImplementedError

    def is_folded(self, layers: int) -> bool:
        """Return whether this layer computes in one product for `layers` layers, of which it is the first."""
        return self.joint is not None and self.joint_layers == layers and torch.compiler.is_compiling()

    def folded(self, layers: Sequence[FoldableLinear], x: Tensor, pieces: Sequence[int] = ()) -> list[Tensor]:
        """Return the outputs of `layers` for one input (..., in), side by side and split into `pieces`."""
        return self.fold_of(layers, x, pieces=pieces, ways=self.ways)

    def fold_of(self, layers: Sequence[FoldableLinear], x: Tensor, **how: Any) -> list[Tensor]:
        """Return the product of `layers` for one input; `how` is for the function that computes it."""
        raise NotImplementedError

    def project_split(self, x: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        return self.folded([self], x, widths) if self.is_folded(1) else super().project_split(x, widths)

    def project_geglu(self, x: Tensor) -> Tensor:
        if self.is_folded(1):
            return self.fold_of([self], x, gated=True, ways=self.ways)[0]
        return super().project_geglu(x)
