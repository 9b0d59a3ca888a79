"""Recording of CUDA graphs, whatever they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol, TypeVar

import torch

from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.settings.recording import keeps_from_recording, wants_recording
from sd_scripts.training.context import Context

T = TypeVar("T")

SPARE_BYTES = 256 * 2**20
"""GPU memory that later graphs of a training leave free: for samples, for the update, for other programs."""


def records_steps(context: Context) -> bool:
    """Return whether a run is to record its steps as CUDA graphs: on a GPU, whose weights no other process shards,
    if the options ask for it and none prevents it."""
    settings = context.settings
    if context.device.type != "cuda" or context.sharded or keeps_from_recording(settings.filled):
        return False
    return wants_recording(settings[CompileOptions], settings[CudaOptions])


class Recording(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what runs on the GPU."""

    def record(self, run: Callable[[], T]) -> tuple[Recording, T]:
        """Record `run` without executing it; return the function that replays it, and where its result will be."""

    def has_room(self) -> bool:
        """Return whether there is memory for one more graph like those that are there."""


class RecordingFailed(Exception):
    """Raised if a micro-step cannot be recorded, or not in addition to the existing graphs. Nothing of it has been
    computed."""

    def __init__(self, reason: str, *, none_left: bool, out_of_memory: bool):
        super().__init__(reason)
        self.none_left, self.out_of_memory = none_left, out_of_memory
        """Whether no graph is there to be replayed; whether memory did not suffice."""


class CudaRecorder:
    """Records CUDA graphs that share their memory, since only one of them runs at a time."""

    def __init__(self, spare: int = SPARE_BYTES) -> None:
        """`spare`: bytes of GPU memory that later graphs leave free."""
        self._spare = spare
        self._pool = torch.cuda.graph_pool_handle()
        self._largest = 0
        """Bytes that a graph takes besides its tensors: its thousands of kernels, which only the driver counts."""

    def has_room(self) -> bool:
        return torch.cuda.mem_get_info()[0] >= 2 * self._largest + self._spare

    def record(self, run: Callable[[], T]) -> tuple[Recording, T]:
        graph = torch.cuda.CUDAGraph()
        available = _available()
        error: Exception | None = None
        try:
            # the threads of the data loader may use CUDA in the meantime; entering frees the warm-up's cache
            with torch.cuda.graph(
                graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
            ):
                try:
                    result = run()
                except Exception as first:
                    error = first
                    raise
        except Exception as last:
            # PyTorch may treat the failed recording as still running, and record no other to its pool
            self._pool = torch.cuda.graph_pool_handle()
            end_failed_recording()
            raise (error or last) from None  # ending a failed recording raises an error of its own
        self._largest = max(self._largest, available - _available())
        return graph, result


def end_failed_recording() -> None:
    """Record a graph of nothing. Before 2.13, PyTorch's generator treats a failed recording as still running, until
    another ends, and draws no random numbers."""
    with suppress(RuntimeError):
        stream = torch.cuda.Stream()
        graph = torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local")
        with torch.cuda.stream(stream), graph:
            torch.zeros((), device=stream.device)


def _available() -> int:
    """Return the bytes of GPU memory that are free or in PyTorch's hands."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


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
