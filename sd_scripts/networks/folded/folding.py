"""Which adapted layers compute in one matrix product with their base weights, and the joint matrices they share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sd_scripts.library.diffusion.block_swap import is_swapped
from sd_scripts.library.kernels.folded_product import Ways
from sd_scripts.library.quantization.quantized import compute_dtype
from sd_scripts.networks.folded.foldable import FoldableLinear, Tail
from sd_scripts.networks.lokr_sizes import MULTIPLE

LARGE = 3072
"""The smaller side of a weight from which on only one of its products is a joint one: that which has the wider result.
What the other adds is small beside a product of this size (docs/performance.md)."""

Run = tuple[int, Tensor, int | None]
"""Where a part begins in the flat buffer, its place in a joint matrix, and where the factor of it is, if it has one."""


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Layers with the same input, and their joint matrix [[W, B], [A, 0]] (see library/kernels/folded_product.py)."""

    layers: Sequence[FoldableLinear]
    joint: Tensor

    def tails(self) -> Iterator[Tail]:
        """Yield the parts of the joint matrix that follow parameters."""
        out, width = (size - sum(layer.folded_rank for layer in self.layers) for size in self.joint.shape)
        row, rank = 0, 0
        for layer in self.layers:
            rows, ranks = slice(row, row + layer.out_features), slice(rank, rank + layer.folded_rank)
            yield from layer.tails(self.joint[out:][ranks, :width], self.joint[rows, width:][:, ranks])
            row, rank = rows.stop, ranks.stop


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
        """Whether all compute copies lie in joint matrices, so that nobody reads the flat buffer."""
        self._copies = None
        if compute.is_cuda and importlib.util.find_spec("triton"):
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
    known, folds = set(chosen), []
    for group in groups:
        together = [layer for layer in group if isinstance(layer, FoldableLinear)]
        if len(together) == len(group) and known.issuperset(together) and _can_share(together):
            folds.append(_joined(together))
            known.difference_update(together)
    return folds + [_joined([layer]) for layer in chosen if layer in known and _aligned([layer])]


def _sizes(layer: FoldableLinear) -> tuple[int, int]:
    return layer.in_features, layer.out_features


def _can_fold(layer: FoldableLinear) -> bool:
    """Return whether a layer's adapter can be folded, and its weight is a plain one that stays where it is."""
    return (
        layer.foldable
        and layer.weight.dtype == compute_dtype(layer)
        and not is_swapped(layer.weight)
        and not layer.dropouts.any()
        and layer.row_noise is None
    )


def _can_share(layers: Sequence[FoldableLinear]) -> bool:
    alike = len({type(layer) for layer in layers}) == 1
    return alike and _aligned(layers) and all(layer.bias is None for layer in layers)


def _aligned(layers: Sequence[FoldableLinear]) -> bool:
    sizes = (sum(layer.folded_rank for layer in layers), layers[0].in_features, *(x.out_features for x in layers))
    return not any(size % MULTIPLE for size in sizes)


@torch.no_grad()
def _joined(layers: Sequence[FoldableLinear]) -> Fold:
    """Move the weights of `layers` into a joint matrix."""
    rank, out = sum(layer.folded_rank for layer in layers), sum(layer.out_features for layer in layers)
    width = layers[0].in_features
    joint = layers[0].weight.new_zeros(out + rank, width + rank)
    row = 0
    for layer in layers:
        place = joint[row : row + layer.out_features, :width]
        layer.weight.data = place.copy_(layer.weight)
        row += layer.out_features
    first = layers[0]
    first.joint, first.joint_layers = joint, len(layers)
    if min(width, out) >= LARGE:
        first.ways = Ways(output=first.ways.output and out > width, gradient=width >= out)
    return Fold(layers=layers, joint=joint)
