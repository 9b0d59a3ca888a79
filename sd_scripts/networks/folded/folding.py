"""Base weights and adapters in one matrix: its contents, and the layers that compute with it.

A foldable layer computes its adapter in the product with its base weight, where it is compiled
(library/kernels/folded_product.py); foldable layers with the same input, such as q, k and v, all compute in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import is_swapped
from sd_scripts.library.kernels.folded_product import BOTH, Ways, define_gradients
from sd_scripts.library.kernels.triton_kernels import HAS_TRITON
from sd_scripts.library.quantization.quantized import compute_dtype
from sd_scripts.networks.layers import AdaptedLinear, Dropouts
from sd_scripts.networks.lokr_sizes import MULTIPLE

LARGE = 3072
"""The smaller side of a weight from which on only one of its products is a joint one: that which has the wider result.
The other's share is small compared with a product of this size (docs/performance.md)."""

Run = tuple[int, Tensor, int | None]
"""Where a part begins in the flat buffer, its place in a joint matrix, and where the factor of it is, if it has one."""


def stays_plain(layer: AdaptedLinear) -> bool:
    """Return whether a layer's weight is neither quantized nor swapped, so that other code may keep its address."""
    return layer.weight.dtype == compute_dtype(layer) and not is_swapped(layer.weight)


class Tail(NamedTuple):
    """A part of a joint matrix that follows a parameter."""

    parameter: nn.Parameter
    place: Tensor
    moves: bool = False
    """Whether the parameter itself is in the matrix afterwards."""
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
        """Yield the values to write into `down`, (r, in), and `up`, (out, r), which are 0."""
        raise NotImplementedError

    def is_folded(self, layers: int) -> bool:
        """Return whether this layer computes in one product for `layers` layers, starting with itself."""
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


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Layers with the same input, and their joint matrix [[W, B], [A, 0]] (see library/kernels/folded_product.py)."""

    layers: Sequence[FoldableLinear]
    joint: Tensor

    def tails(self) -> Iterator[Tail]:
        """Yield the parts of the joint matrix that follow parameters."""
        out, width = (size - sum(layer.folded_rank for layer in self.layers) for size in self.joint.shape)
        row = rank = 0
        for layer in self.layers:
            rows = slice(row, row + layer.out_features)
            ranks = slice(rank, rank + layer.folded_rank)
            yield from layer.tails(self.joint[out:][ranks, :width], self.joint[rows, width:][:, ranks])
            row = rows.stop
            rank = ranks.stop


class FoldedLayers:
    """All folds of a network. The parameters of LoRA become views of the joint matrices."""

    def __init__(self, folds: Sequence[Fold], compute: Tensor, starts: Mapping[nn.Parameter, int]):
        """`compute`: the network's flat buffer of compute copies; `starts`: where each of them begins."""
        self._runs: list[Run] = []
        moved = 0
        for parameter, place, moves, factor in (tail for fold in folds for tail in fold.tails()):
            if moves:
                parameter.data = place
                moved += 1
            self._runs.append((starts[parameter], place, starts[factor[0]] + factor[1] if factor else None))
        self.complete = moved == len(starts)
        """Whether all compute copies are in joint matrices, so that nobody reads the flat buffer."""
        self._copies = None
        if compute.is_cuda and HAS_TRITON:
            from sd_scripts.library.strided_copies import StridedCopies

            self._copies = StridedCopies(self._runs)

    @torch.no_grad()
    def refresh(self, compute: Tensor) -> None:
        """Copy the flat buffer into the joint matrices; call whenever it has changed."""
        if self._copies:
            self._copies.run(compute)
            return
        for start, place, factor in self._runs:
            place.copy_(compute[start : start + place.numel()].view(place.shape))
            if factor is not None:
                place.mul_(compute[factor])


def fold(
    layers: Iterable[nn.Module], groups: Sequence[Sequence[nn.Module]] = (), kept_inputs: Iterable[nn.Module] = ()
) -> list[Fold]:
    """Join the matrices of the layers that can be folded.

    `groups`: layers that project_together applies to one input; they share a matrix. `kept_inputs`: layers whose input
    is in memory until the backward pass anyway. From here on the weights are views of their joint matrix and must not
    move.
    """
    for layer in kept_inputs:
        if isinstance(layer, FoldableLinear):
            layer.ways = layer.ways._replace(output=False)
    foldable = [layer for layer in layers if isinstance(layer, FoldableLinear)]
    swapped = {_sizes(layer) for layer in foldable if is_swapped(layer.weight)}  # blocks of one kind share graphs
    chosen = [layer for layer in foldable if _can_fold(layer) and _sizes(layer) not in swapped]
    remaining = set(chosen)
    folds = []
    for group in groups:
        together = [layer for layer in group if isinstance(layer, FoldableLinear)]
        if len(together) == len(group) and remaining.issuperset(together) and _can_share(together):
            folds.append(_joined(together))
            remaining.difference_update(together)
    return folds + [_joined([layer]) for layer in chosen if layer in remaining and _aligned([layer])]


def _sizes(layer: FoldableLinear) -> tuple[int, int]:
    return layer.in_features, layer.out_features


def _can_fold(layer: FoldableLinear) -> bool:
    return layer.foldable and stays_plain(layer) and not layer.dropouts.any() and layer.row_noise is None


def _can_share(layers: Sequence[FoldableLinear]) -> bool:
    alike = len({type(layer) for layer in layers}) == 1
    return alike and _aligned(layers) and all(layer.bias is None for layer in layers)


def _aligned(layers: Sequence[FoldableLinear]) -> bool:
    sizes = (sum(layer.folded_rank for layer in layers), layers[0].in_features, *(x.out_features for x in layers))
    return not any(size % MULTIPLE for size in sizes)


@torch.no_grad()
def _joined(layers: Sequence[FoldableLinear]) -> Fold:
    """Move the weights of `layers` into a joint matrix."""
    rank = sum(layer.folded_rank for layer in layers)
    out = sum(layer.out_features for layer in layers)
    width = layers[0].in_features
    joint = layers[0].weight.new_zeros(out + rank, width + rank)
    define_gradients(joint.device)
    row = 0
    for layer in layers:
        place = joint[row : row + layer.out_features, :width]
        layer.weight.data = place.copy_(layer.weight)
        row += layer.out_features
    first = layers[0]
    first.joint = joint
    first.joint_layers = len(layers)
    if min(width, out) >= LARGE:
        first.ways = Ways(output=first.ways.output and out > width, gradient=width >= out)
    return Fold(layers=layers, joint=joint)
