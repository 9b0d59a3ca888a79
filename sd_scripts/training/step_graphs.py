"""Forward and backward of a micro-step as one CUDA graph for each shape of its inputs.

A step launches thousands of small kernels, for which many CPUs need longer than the GPU. Replaying a recorded graph is
one launch. The update that follows is a graph of its own (update_graph), or launched as usual, so that any optimizer
works.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sd_scripts.families.family import StepInputs
from sd_scripts.training.execution.gradients import GradientBuffer

if TYPE_CHECKING:
    from sd_scripts.training.update_graph import UpdateGraph

T = TypeVar("T")

WARM_UP = 2
"""Times that inputs of a shape run as usual before they are recorded: they compile, tune kernels and fill caches."""

SPARE_BYTES = 256 * 2**20
"""GPU memory that later graphs leave free: for samples, for the update, for other programs."""

Key = tuple[Any, ...]


class Recorded(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what runs on the GPU."""

    def record(self, run: Callable[[], T]) -> tuple[Recorded, T]:
        """Record `run` without executing it; return what replays it, and where its result will be."""

    def has_room(self) -> bool:
        """Return whether there is memory for one more graph like those that are there."""


class RecordingFailed(Exception):
    """Raised if a micro-step cannot be recorded, or not beside what is recorded. Nothing of it has been computed."""

    def __init__(self, why: str, *, none_left: bool, out_of_memory: bool):
        super().__init__(why)
        self.none_left, self.out_of_memory = none_left, out_of_memory
        """Whether no graph is there to be replayed; whether memory did not suffice."""


@dataclass(frozen=True, kw_only=True)
class _Graph:
    inputs: StepInputs
    graph: Recorded
    loss: Tensor


class CudaRecorder:
    """Records CUDA graphs that share their memory, since only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._largest = 0
        """Bytes that a graph takes besides its tensors: its thousands of kernels, which only the driver counts."""

    def has_room(self) -> bool:
        return torch.cuda.mem_get_info()[0] >= 2 * self._largest + SPARE_BYTES

    def record(self, run: Callable[[], T]) -> tuple[Recorded, T]:
        graph, available = torch.cuda.CUDAGraph(), _available()
        error: Exception | None = None
        try:
            # the threads of the data loader may use CUDA meanwhile; entering frees what the warm-up has cached
            with torch.cuda.graph(
                graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
            ):
                try:
                    result = run()
                except Exception as first:
                    error = first
                    raise
        except Exception as last:
            # PyTorch may take the recording that failed for one that goes on, and record no other to its pool
            self._pool = torch.cuda.graph_pool_handle()
            end_failed_recording()
            raise (error or last) from None  # ending a failed recording raises an error of its own
        self._largest = max(self._largest, available - _available())
        return graph, result


def end_failed_recording() -> None:
    """Record a graph of nothing. Before 2.13, PyTorch's generator takes a recording that failed for one that goes on,
    until another ends, and draws no random numbers."""
    with suppress(RuntimeError):
        stream = torch.cuda.Stream()
        graph = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local")
        with torch.cuda.stream(stream), graph:
            torch.zeros((), device=stream.device)


def _available() -> int:
    """Return the bytes of GPU memory that are free or in PyTorch's hands."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


class StepGraphs:
    """Records micro-steps and replays them."""

    def __init__(
        self,
        gradients: GradientBuffer,
        recorder: Recorder,
        tell: Callable[[int], object],
        update: "UpdateGraph | None" = None,
    ):
        """`tell` is called with the number of a graph, from 1, before it is recorded; `update`: that of the update,
        which reads the gradients where these graphs write them."""
        self._gradients, self._recorder, self._tell, self.update = gradients, recorder, tell, update
        self._graphs: dict[Key, _Graph] = {}
        self._seen: Counter[Key] = Counter()
        self._records = True

    def micro(self, inputs: StepInputs, run: Callable[[StepInputs], Tensor]) -> Tensor:
        """Return the loss of `run(inputs)`, which computes it and the gradients. RecordingFailed: see there."""
        tensors, structure = pytree.tree_flatten(inputs)
        key = (self._gradients.filled, structure, *((x.shape, x.stride(), x.dtype) for x in tensors))
        graph = self._graphs.get(key)
        if graph is None:
            self._seen[key] += 1
            if not self._records or self._seen[key] <= WARM_UP:
                return self._beside_graphs(inputs, run)
            graph = self._graphs[key] = self._recorded(inputs, run)
        for static, tensor in zip(pytree.tree_leaves(graph.inputs), tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._gradients.settle()
        graph.graph.replay()
        self._gradients.written_by_graph()
        return graph.loss.clone()  # the next replay overwrites it

    def forget(self) -> None:
        """Free the graphs, and record again what is run from now on."""
        self._seen.clear()
        self._graphs.clear()
        if self.update:
            self.update.forget()
        self._gradients.release()

    def drop(self) -> None:
        """Free the graphs and record no more."""
        self._records = False
        self.forget()

    def _beside_graphs(self, inputs: StepInputs, run: Callable[[StepInputs], Tensor]) -> Tensor:
        """Run as usual. Without the graphs' memory there may be enough for what is too large beside them."""
        try:
            return run(inputs)
        except torch.OutOfMemoryError as error:
            if not self._graphs:
                raise
            traceback.clear_frames(error.__traceback__)
        self.drop()
        why = "other batches do not fit into GPU memory beside the recorded graphs"
        raise RecordingFailed(why, none_left=True, out_of_memory=True)

    def _recorded(self, inputs: StepInputs, run: Callable[[StepInputs], Tensor]) -> _Graph:
        if self._graphs and not self._recorder.has_room():
            self._records = False
            raise RecordingFailed("too little GPU memory is free", none_left=False, out_of_memory=True)
        self._tell(len(self._graphs) + 1)
        static = pytree.tree_map(torch.clone, inputs)

        def whole() -> Tensor:
            loss = run(static)
            self._gradients.fix()
            return loss

        self._gradients.settle()
        try:
            graph, loss = self._recorder.record(whole)
        except Exception as error:
            self._records = False
            why, out_of_memory = summary(error), isinstance(error, torch.OutOfMemoryError)
            traceback.clear_frames(error.__traceback__)  # they hold what was allocated
        else:
            return _Graph(inputs=static, graph=graph, loss=loss)
        if not self._graphs:
            self.drop()
        raise RecordingFailed(why, none_left=not self._graphs, out_of_memory=out_of_memory)


def summary(error: Exception) -> str:
    """Return the class of an error and its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run what follows on a stream of its own: PyTorch records on none but such."""
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)


def stream_for(device: torch.device, *, records: bool) -> AbstractContextManager[None]:
    """Return the context for a run that records its steps, or does not."""
    return own_stream(device) if records else nullcontext()
