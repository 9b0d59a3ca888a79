"""Averaging of gradients between processes (data parallel), after backward or while it still runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from sd_scripts.training.methods.master_weights import Partition, gradients_of

BUCKET = 2**28
"""Bytes of gradients per all-reduce."""
MAX_IN_FLIGHT = 4
"""Blocks whose all-reduce may be in flight at the same time; each needs its gradients twice in memory."""


class GradientAverage:
    """Averages gradients over the processes with one asynchronous all-reduce."""

    def __init__(self, gradients: list[Tensor], processes: int):
        self._gradients, self._processes = gradients, processes
        self._flat = torch._utils._flatten_dense_tensors(gradients)
        self._work = torch.distributed.all_reduce(self._flat, async_op=True)

    def finish(self) -> None:
        self._work.wait()
        self._flat.div_(self._processes)
        torch._foreach_copy_(self._gradients, list(torch._utils._unflatten_dense_tensors(self._flat, self._gradients)))


def average_gradients(gradients: Iterable[Tensor], processes: int) -> None:
    """Average the gradients in few all-reduces; all processes have gradients for the same weights."""
    in_flight: GradientAverage | None = None
    for bucket in _buckets(gradients):
        average = GradientAverage(bucket, processes)  # travels while the one before it is copied back
        if in_flight:
            in_flight.finish()
        in_flight = average
    if in_flight:
        in_flight.finish()


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
        if size >= BUCKET:
            yield bucket
            bucket = []
            size = 0
    if bucket:
        yield bucket


class AveragingInBackward:
    """Averages the gradients of each block as soon as backward has computed them.

    Weights outside of the blocks would be many small all-reduces; they are averaged after backward.
    """

    def __init__(self, partitions: Iterable[Partition], processes: int):
        self._processes = processes
        self._partitions = [partition for partition in partitions if partition.block is not None]
        self.in_flight: deque[GradientAverage] = deque()
        self._averaged: dict[Partition, list[Tensor]] = {}
        """Gradients that the processes had averaged when the backward pass failed in this one. The other processes do
        not average them again, so the repeated pass takes these."""
        for each in self._partitions:
            each.when_complete(partial(self._begin, each))

    @torch.no_grad()
    def _begin(self, partition: Partition) -> None:
        gradients = gradients_of(partition.weights)
        if averaged := self._averaged.pop(partition, None):
            torch._foreach_copy_(gradients, averaged)
            return
        if len(self.in_flight) == MAX_IN_FLIGHT:
            self.in_flight.popleft().finish()
        self.in_flight.append(GradientAverage(gradients, self._processes))

    def finish(self) -> None:
        """Wait until the averages of all complete partitions have arrived."""
        while self.in_flight:
            self.in_flight.popleft().finish()

    def keep(self) -> None:
        """Keep gradients that are averaged already, because backward failed and will be repeated."""
        self.finish()
        self._averaged |= {each: gradients_of(each.weights) for each in self._partitions if each.complete}
