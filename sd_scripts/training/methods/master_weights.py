"""Master weights of a trained model: float32 values that the optimizer updates, and the copies the model computes with.

With `full_bf16` or `full_fp16` there are only the copies. Backward updates the weights in partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.options.training import TrainingOptions


@dataclass(eq=False)
class Weight:
    """A trained tensor."""

    name: str
    """Module, then its parameter: `denoiser.conv_in.weight`."""
    copy: nn.Parameter
    """The parameter that the model computes with."""
    group: str
    rate: float
    master: nn.Parameter | None = None
    """The float32 value that `copy` is rounded from; None if there is only the copy."""
    sharded: nn.Parameter | None = None
    """The module's parameter, if `copy` and `master` are this process's rows of it (FSDP)."""

    @property
    def trained(self) -> nn.Parameter:
        """The parameter that the optimizer updates."""
        return self.copy if self.master is None else self.master


def held_dtype(options: TrainingOptions) -> torch.dtype:
    """Return the dtype in which trained weights are stored."""
    return PRECISIONS[options.mixed_precision] if options.full_bf16 or options.full_fp16 else torch.float32


def gradients_of(weights: Iterable[Weight]) -> list[Tensor]:
    """Return all gradients that exist, on masters or copies."""
    found = (w.copy.grad if w.trained.grad is None else w.trained.grad for w in weights)
    return [gradient for gradient in found if gradient is not None]


@torch.no_grad()
def collect_gradients(weights: Iterable[Weight]) -> None:
    """Add the copies' gradients to the masters', and clear them."""
    for weight in weights:
        gradient = weight.copy.grad
        if weight.master is None or gradient is None:
            continue
        if weight.master.grad is None:
            weight.master.grad = gradient.float()
        else:
            weight.master.grad.add_(gradient)
        weight.copy.grad = None


def clear_gradients(weights: Iterable[Weight]) -> None:
    for weight in weights:
        weight.copy.grad = weight.trained.grad = None


@torch.no_grad()
def refresh_copies(weights: Iterable[Weight]) -> None:
    """Write the copies from their masters."""
    pairs = [(weight.copy, weight.master) for weight in weights if weight.master is not None]
    if pairs:
        copies, masters = zip(*pairs, strict=True)
        torch._foreach_copy_(list(copies), list(masters))


def require_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise ValueError unless a saved state has tensors of these names and shapes."""
    if any(name not in state or state[name].shape != shape for name, shape in shapes.items()):
        raise ValueError("resume: the state belongs to a different model; train the model that it was saved from")


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
    """Return `count` partitions with the same number of weights (fused_optimizer_groups)."""
    size = -(-len(weights) // count)
    return [Partition(list(weights[i : i + size])) for i in range(0, len(weights), size)]
