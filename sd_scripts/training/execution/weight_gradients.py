"""The gradients of a whole model, which autograd leaves on its parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sd_scripts.library.optim.recordable import ScalesGradients
from sd_scripts.training.execution.gradient_clipping import clip_factor, grad_norm
from sd_scripts.training.execution.gradients import GradientBuffer
from sd_scripts.training.methods.gradient_averaging import AveragingInBackward, average_gradients
from sd_scripts.training.methods.master_weights import (
    Partition,
    Weight,
    clear_gradients,
    collect_gradients,
    gradients_of,
)
from sd_scripts.training.methods.sharded import Shards, collect_shard_gradients, sharded_grad_norm


class WeightGradients(GradientBuffer):
    """The gradients on masters and copies. Only recorded graphs fix them: the first one allocates them among what its
    forward pass no longer needs by then."""

    def __init__(
        self,
        weights: Sequence[Weight],
        partitions: Sequence[Partition],
        device: torch.device,
        shards: Shards | None,
        *,
        accumulates: bool,
    ):
        """`accumulates`: several micro-steps add up, in float32."""
        self._weights, self._partitions, self._device, self._shards = weights, partitions, device, shards
        self._accumulates = accumulates
        self.optimizer: Optimizer | None = None
        self.refreshes = False
        """Whether the optimizer reads the copies' gradients and updates the copies itself."""
        self.averaging: AveragingInBackward | None = None
        """Averages the gradients of a block as soon as backward has computed them."""
        self._fixed: dict[nn.Parameter, Tensor] = {}
        """Where recorded graphs write the gradients."""
        self._in_place = False
        """Whether these are the gradients of all parameters, also after an update was replayed: clearing and setting
        them takes milliseconds."""

    def begin(self) -> None:
        if self._in_place and not self.filled:
            self.clear()

    def collect(self) -> None:
        """Accumulate the copies' gradients in float32, unless the optimizer reads them in place."""
        collect_shard_gradients(self._weights)
        if self._accumulates or not self.refreshes:
            collect_gradients(self._weights)
        self.filled = True
        self._in_place = False

    def named(self) -> dict[str, Tensor]:
        gradients = {weight.name: gradients_of([weight]) for weight in self._weights}
        return {name: of_weight[0] for name, of_weight in gradients.items() if of_weight}

    def average(self, processes: int) -> None:
        """Average the gradients that backward has not: shards and complete partitions are done by then."""
        if self.averaging:
            self.averaging.finish()
        rest = (weight for partition in self._partitions if not partition.complete for weight in partition.weights)
        average_gradients(gradients_of(weight for weight in rest if weight.sharded is None), processes)

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradient norm. A fused backward pass has clipped all but incomplete partitions."""
        optimizer = self.optimizer
        if self._shards:
            norm = sharded_grad_norm(self._weights, self._device)
        elif isinstance(optimizer, ScalesGradients):
            norm = optimizer.gradient_norm()
        else:
            norm = grad_norm(gradients_of(self._weights), self._device)
        factor = clip_factor(norm, max_norm)
        if isinstance(optimizer, ScalesGradients):
            optimizer.clip_factor = factor
        elif gradients := gradients_of(self._weights):
            torch._foreach_mul_(gradients, factor)
        return norm

    def clear(self) -> None:
        clear_gradients(self._weights)
        self.filled = self._in_place = False
        for partition in self._partitions:
            partition.ready_count = 0

    def discard(self) -> None:
        """Discard the gradients, but keep the updates of a failed fused backward pass: the repeated pass updates only
        the rest. Gradients that the processes have averaged are kept too."""
        if self.averaging:
            self.averaging.keep()
        collect_shard_gradients(self._weights)
        self.clear()
        if self._shards:
            self._shards.reset_iteration()

    def settle(self) -> bool:
        if self.filled and self._fixed and not self._in_place and self._all().keys() == self._fixed.keys():
            self._move()
        return self._in_place

    def fix(self) -> None:
        self._fixed = self._fixed or self._all()
        if self._all().keys() != self._fixed.keys():
            raise ValueError("other weights get a gradient for batches of this shape")
        self._move()

    def written_by_graph(self) -> None:
        if not self._in_place:
            for parameter, gradient in self._fixed.items():
                parameter.grad = gradient
        self.filled = self._in_place = True

    def used_by_graph(self) -> None:
        self.filled = False

    def release(self) -> None:
        self.begin()
        self._fixed = {}
        self._in_place = False

    def _all(self) -> dict[nn.Parameter, Tensor]:
        return {p: p.grad for w in self._weights for p in (w.copy, w.trained) if p.grad is not None}

    @torch.no_grad()
    def _move(self) -> None:
        """Move the gradients that exist to where recorded graphs write them."""
        pairs = [(self._fixed[parameter], gradient) for parameter, gradient in self._all().items()]
        if moved := [(fixed, gradient) for fixed, gradient in pairs if fixed is not gradient]:
            fixed, gradients = zip(*moved, strict=True)
            torch._foreach_copy_(list(fixed), list(gradients))
        self.written_by_graph()
