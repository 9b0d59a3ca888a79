"""Partitions of a model's weights: those whose gradients are ready together, so that backward can use them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from sd_scripts.training.master_weights import Weight


@dataclass(eq=False)
class Partition:
    """Weights that are updated together, as soon as the last of their gradients is ready."""

    weights: list[Weight] = field(default_factory=list)
    block: nn.Module | None = None
    """The block whose weights these are, if they are one: block swap may keep it off the device."""
    ready_count: int = 0
    """How many of the gradients are ready."""

    @property
    def complete(self) -> bool:
        return self.ready_count == len(self.weights)

    def when_complete(self, do: Callable[[], None]) -> None:
        """Call `do` within each backward, as soon as the last gradient is ready."""
        for weight in self.weights:
            weight.copy.register_post_accumulate_grad_hook(partial(self._count, do))

    def _count(self, do: Callable[[], None], _: Tensor) -> None:
        self.ready_count += 1
        if self.complete:
            do()


def partitions_by_block(weights: Sequence[Weight], blocks: Sequence[nn.Module]) -> list[Partition]:
    """Return one partition per repeated block, whose gradients come together, and one per weight outside of them."""
    block_of = {id(p): block for block in blocks for p in block.parameters()}
    partitions: dict[object, Partition] = {}
    for weight in weights:
        block = block_of.get(id(weight.copy))
        partitions.setdefault(block or weight, Partition(block=block)).weights.append(weight)
    return list(partitions.values())


def equal_partitions(weights: Sequence[Weight], count: int) -> list[Partition]:
    """Return `count` partitions with equally many weights (fused_optimizer_groups)."""
    size = -(-len(weights) // count)
    return [Partition(list(weights[i : i + size])) for i in range(0, len(weights), size)]
