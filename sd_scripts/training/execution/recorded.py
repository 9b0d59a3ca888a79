"""Steps as CUDA graphs: one of forward and backward for each shape of inputs, and one of the update.

A step launches thousands of small kernels, for which many CPUs need longer than the GPU. Replaying a recorded graph is
one launch. One graph of the update serves all batch shapes and any number of micro-steps, since gradients stay at the
same address once micro-steps are recorded. What differs between two updates is in tensors on the device: learning
rates, which the schedule fills, counters, and the weight of the EMA.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs
from sd_scripts.library.optim.recordable import recordable
from sd_scripts.training.execution.eager import Eager, HalfScaler
from sd_scripts.training.execution.recorder import Recorder, Recording, RecordingFailed, summary
from sd_scripts.training.execution.runner import Launch, StepResult
from sd_scripts.training.saving.ema import Ema

WARM_UP = 2
"""Times that inputs of a shape run as usual before they are recorded: they compile, tune kernels and fill caches."""

CHANGES = ("params", "lr", "initial_lr", "name")
"""Entries of optimizer groups that no graph contains, or not as values."""

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class _MicroStep:
    inputs: StepInputs
    graph: Recording
    loss: Tensor


class Recorded:
    """Records micro-steps and replays them; and updates too, if they can be recorded."""

    def __init__(
        self,
        eager: Eager,
        recorder: Recorder,
        announce: Callable[[int], object],
        updates: RecordedUpdates | None = None,
    ):
        """`announce` is called with the number of a graph, from 1, before it is recorded."""
        self._eager, self._recorder, self._announce, self._updates = eager, recorder, announce, updates
        self._gradients = eager.trainable.gradients
        self.launch: Launch = eager
        """Launches recorded graphs, and steps that are not recorded."""
        self._graphs: dict[Key, _MicroStep] = {}
        self._seen: Counter[Key] = Counter()
        self._records = True

    def step(self, batches: Sequence[Batch]) -> StepResult:
        return self._eager.step(batches, self)

    def micro_step(self, inputs: StepInputs) -> Tensor:
        """As Launch. Raises RecordingFailed, and then nothing of the micro-step has been computed."""
        tensors, structure = pytree.tree_flatten(inputs)
        key = (self._gradients.filled, structure, *((x.shape, x.stride(), x.dtype) for x in tensors))
        graph = self._graphs.get(key)
        if graph is None:
            self._seen[key] += 1
            if not self._records or self._seen[key] <= WARM_UP:
                return self._beside_graphs(inputs)
            graph = self._graphs[key] = self._recorded(inputs)
        for static, tensor in zip(pytree.tree_leaves(graph.inputs), tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._gradients.settle()
        graph.graph.replay()
        self._gradients.written_by_graph()
        return graph.loss.clone()  # the next replay overwrites it

    def update(self, ema: Ema | None) -> Tensor | None:
        if self._updates and self._gradients.settle():
            return self._updates.run(ema)
        return self._eager.update(ema)

    def forget(self) -> None:
        """Free the graphs, and record later steps again."""
        self._seen.clear()
        self._graphs.clear()
        if self._updates:
            self._updates.forget()
        self._gradients.release()

    def drop(self) -> None:
        """Free the graphs and record no more."""
        self._records = False
        self.forget()

    def _beside_graphs(self, inputs: StepInputs) -> Tensor:
        """Run as usual. Without the graphs there may be enough memory for batches too large next to them."""
        try:
            return self.launch.micro_step(inputs)
        except torch.OutOfMemoryError as error:
            if not self._graphs:
                raise
            traceback.clear_frames(error.__traceback__)
        self.drop()
        reason = "other batches do not fit into GPU memory next to the recorded graphs"
        raise RecordingFailed(reason, none_left=True, out_of_memory=True)

    def _recorded(self, inputs: StepInputs) -> _MicroStep:
        if self._graphs and not self._recorder.has_room():
            self._records = False
            raise RecordingFailed("too little GPU memory is free", none_left=False, out_of_memory=True)
        self._announce(len(self._graphs) + 1)
        static = pytree.tree_map(torch.clone, inputs)

        def whole() -> Tensor:
            loss = self.launch.micro_step(static)
            self._gradients.fix()
            return loss

        self._gradients.settle()
        try:
            graph, loss = self._recorder.record(whole)
        except Exception as error:
            self._records = False
            reason = summary(error)
            out_of_memory = isinstance(error, torch.OutOfMemoryError)
            traceback.clear_frames(error.__traceback__)  # they keep the allocations alive
        else:
            return _MicroStep(inputs=static, graph=graph, loss=loss)
        if not self._graphs:
            self.drop()
        raise RecordingFailed(reason, none_left=not self._graphs, out_of_memory=out_of_memory)


@dataclass(frozen=True, kw_only=True)
class _Update:
    graph: Recording
    norm: Tensor | None


class RecordedUpdates:
    """Records updates and replays them: one graph with the EMA, one without."""

    def __init__(self, eager: Eager, recorder: Recorder, warn: Callable[[str], object]):
        """`warn` is called with the reason if recording fails; updates then run as usual."""
        self._eager, self._recorder, self._warn = eager, recorder, warn
        self._optimizer = recordable(eager.optimizer)
        self._graphs: dict[bool, _Update] = {}
        self._seen: Counter[bool] = Counter()
        self._fixed: Key = ()
        self._records = True

    def run(self, ema: Ema | None) -> Tensor | None:
        """As Launch.update, with all gradients where graphs write them."""
        if (fixed := self._contained()) != self._fixed:
            self.forget()
            self._fixed = fixed
        averages = ema if ema and ema.on_device_of_weights else None
        graph = self._graph(averages)
        if graph is None:
            return self._eager.update(ema)
        self._optimizer.fill_scalars()
        if averages:
            averages.fill_scalars()
        graph.graph.replay()
        self._optimizer.replayed()
        self._eager.trainable.gradients.used_by_graph()
        if ema and not averages:
            ema.update()
        return None if graph.norm is None else graph.norm.clone()  # the next replay overwrites it

    def forget(self) -> None:
        """Free the graphs, and record later steps again."""
        self._seen.clear()
        self._graphs.clear()

    def _contained(self) -> Key:
        """Return the current state that graphs contain: values, and which tensors they read and write."""
        optimizer = self._eager.optimizer
        values = [tuple(v for name, v in group.items() if name not in CHANGES) for group in optimizer.param_groups]
        return id(optimizer.state), *(id(group["lr"]) for group in optimizer.param_groups), *values

    def _graph(self, averages: Ema | None) -> _Update | None:
        """Return the graph of an update, and of the EMA if given; None if it is to run as usual."""
        key = averages is not None
        if key not in self._graphs:
            self._seen[key] += 1
            if not self._records or self._seen[key] <= WARM_UP:
                return None
            graph = self._recorded(averages)
            if graph is None:
                return None
            self._graphs[key] = graph
        return self._graphs[key]

    def _recorded(self, averages: Ema | None) -> _Update | None:
        """Return the recorded update, or None if it cannot be recorded."""
        if not self._optimizer.begin_recording():
            self._records = False
            return None
        try:
            graph, norm = self._recorder.record(lambda: self._eager.update(averages, recorded=self._optimizer))
        except Exception as error:
            self._records = False
            reason = summary(error)
            traceback.clear_frames(error.__traceback__)  # they keep the allocations alive
        else:
            return _Update(graph=graph, norm=norm)
        # nothing was computed, though Python took gradients for unscaled and used
        if isinstance(self._eager.scaler, HalfScaler):
            self._eager.scaler.restart()
        self._eager.trainable.gradients.written_by_graph()
        self._warn(reason)
        return None
