"""Forward passes of a denoiser as CUDA graphs, where the steps of an image wait for the CPU.

A step of a U-Net launches thousands of small kernels, for which many CPUs need longer than the GPU. Replaying a
recorded pass is one launch. Where the GPU is the slower of both, as with large transformers, nothing is recorded: it
would gain nothing, and graphs keep memory that decoding needs.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sd_scripts.training.execution.recorder import CudaRecorder, Recorder, Recording, summary

logger = logging.getLogger(__name__)

MOST = 8
"""Passes of different shapes that are kept; with one more, all are recorded again."""
ROOM = 4 * 2**30
"""Bytes of GPU memory that have to stay free: decoding an image of 1024x1024 takes up to 2.5 GiB."""
IDLE = 0.9
"""Share of a pass that launching takes from which on it counts as waiting for the CPU. A GPU that is behind has up to
a thousand kernels left when the last one has been launched."""

Timed = Callable[[Callable[[], Any]], tuple[Any, bool]]
"""Runs a pass, and returns its result and whether the GPU waited for the CPU."""


def timed_on_gpu(run: Callable[[], Any]) -> tuple[Any, bool]:
    """As Timed."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    result = run()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return result, launched - began >= IDLE * (time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True)
class _Pass:
    inputs: Sequence[Tensor]
    graph: Recording
    output: Any


class RecordedForward:
    """Replaces a module's `forward`. Of calls whose inputs differ in their values alone, the first one runs as
    usual, since it compiles; the second one is timed; if the GPU waited for the CPU, later ones are replayed."""

    def __init__(self, module: nn.Module, recorder: Recorder, timed: Timed = timed_on_gpu):
        self._module, self._forward, self._recorder, self._timed = module, module.forward, recorder, timed
        self._seen: Counter[Hashable] = Counter()
        self._waiting: set[Hashable] = set()
        """Calls in which the GPU waited for the CPU."""
        self._passes: dict[Hashable, _Pass] = {}
        self._records = True
        self._stream = torch.cuda.Stream() if next(module.parameters()).is_cuda else None
        """PyTorch does not record on the default stream."""
        module.forward = self._call

    @property
    def graphs(self) -> int:
        """The recorded passes."""
        return len(self._passes)

    @classmethod
    def of(cls, module: nn.Module) -> RecordedForward:
        """Record the passes of a module on a GPU."""
        return cls(module, CudaRecorder(spare=ROOM))

    def drop(self) -> bool:
        """Free all graphs and record no more; return whether there were any."""
        self._records = False
        there = bool(self._passes)
        self._passes.clear()
        return there

    def remove(self) -> None:
        """Give the module its own `forward` back, and free all graphs."""
        self.drop()
        self._module.forward = self._forward

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not self._records or torch.is_grad_enabled() or not all(isinstance(leaf, Hashable) for leaf in leaves):
            return self._forward(*args, **kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        key = (structure, *(_kind(leaf) for leaf in leaves))

        def run(inputs: Sequence[Tensor] = tensors) -> Any:
            given = iter(inputs)
            filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            own_args, own_kwargs = pytree.tree_unflatten(filled, structure)
            return self._forward(*own_args, **own_kwargs)

        recorded = self._passes.get(key)
        if recorded is None:
            self._seen[key] += 1
            if self._seen[key] == 2:
                result, waited = self._timed(run)
                if waited:
                    self._waiting.add(key)
                return result
            if key not in self._waiting:
                return run()
            recorded = self._recorded(run, tensors)
            if recorded is None:
                self._waiting.discard(key)
                return run()
            self._passes[key] = recorded
        for static, tensor in zip(recorded.inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        recorded.graph.replay()
        return pytree.tree_map_only(Tensor, torch.clone, recorded.output)  # the next replay overwrites it

    def _recorded(self, run: Callable[[Sequence[Tensor]], Any], tensors: Sequence[Tensor]) -> _Pass | None:
        """Record a pass; None if it cannot be recorded, and then no graph stays, or if there is no room for another."""
        if len(self._passes) >= MOST:
            self._passes.clear()
        if self._stream:
            torch.cuda.empty_cache()  # a graph cannot use it, so that it counts as free
        if not self._recorder.has_room():
            return None
        static = [tensor.clone() for tensor in tensors]
        try:
            with self._on_stream():
                graph, output = self._recorder.record(lambda: run(static))
        except Exception as error:
            logger.info(f"steps are not recorded: {summary(error)}")
            traceback.clear_frames(error.__traceback__)  # they keep the allocations alive
            self.drop()
            return None
        return _Pass(inputs=static, graph=graph, output=output)

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()


def _kind(leaf: Any) -> Any:
    """Return the part of an input that a graph depends on: of a tensor all but its values."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return leaf
