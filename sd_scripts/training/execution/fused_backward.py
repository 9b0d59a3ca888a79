"""Optimizer-in-backward (`fused_backward_pass`): weights are updated as soon as their gradients are ready."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from sd_scripts.library.diffusion.block_swap import SwapGroup
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.training.execution.gradient_clipping import clip_factor
from sd_scripts.training.methods.gradient_averaging import average_gradients
from sd_scripts.training.methods.master_weights import (
    Partition,
    clear_gradients,
    collect_gradients,
    gradients_of,
    refresh_copies,
)


class FusedBackward:
    """Updates each partition within backward. Its gradients are clipped one by one, since all together never exist."""

    def __init__(
        self,
        optimizer: PartitionedOptimizer,
        partitions: Sequence[Partition],
        swapper: SwapGroup,
        *,
        max_norm: float,
        processes: int,
        refreshes: bool,
    ):
        """The optimizer identifies the partitions by their index. `refreshes`: it reads and writes the copies
        itself."""
        self._optimizer, self._swapper = optimizer, swapper
        self._max_norm, self._processes, self._refreshes = max_norm, processes, refreshes
        for key, each in enumerate(partitions):
            each.when_complete(partial(self._update, key, each))

    @torch.no_grad()
    def _update(self, key: int, partition: Partition) -> None:
        """Update a partition whose gradients are ready; its block, if it has one, is on the device."""
        partition.ready_count = 0
        if self._optimizer.was_stepped(key):  # before this step failed and restarted
            clear_gradients(partition.weights)
            return
        if not self._refreshes:
            collect_gradients(partition.weights)
        gradients = gradients_of(partition.weights)
        if self._processes > 1:
            average_gradients(gradients, self._processes)
        if self._max_norm > 0:
            for gradient in gradients:
                gradient.mul_(clip_factor(torch.linalg.vector_norm(gradient), self._max_norm))
        self._optimizer.step_partition(key)
        if not self._refreshes:
            refresh_copies(partition.weights)
        clear_gradients(partition.weights)
        self._swapper.changed(partition.block)
