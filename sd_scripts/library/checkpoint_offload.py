"""Checkpoints of gradient checkpointing in main memory: sent there, and fetched back, while the device computes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

AHEAD = 3
"""How many checkpoints are on their way back before backward asks for them."""


class CheckpointOffload:
    """Use around torch.utils.checkpoint: `with offload.keeping(hidden): checkpoint(block, *hidden, ...)`."""

    def __init__(self) -> None:
        self._sent: list[weakref.ref[_Sent]] = []
        """In the order of forward; autograd holds them until backward has used them."""
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        """Out and back: the two directions do not wait for each other."""

    def keeping(self, hidden: Sequence[Tensor]) -> AbstractContextManager[object]:
        """Meanwhile those of `hidden` that autograd keeps go to main memory; on the CPU they are there."""
        if not hidden[0].is_cuda:
            return nullcontext()
        if self._streams is None:
            self._streams = torch.cuda.Stream(hidden[0].device), torch.cuda.Stream(hidden[0].device)
        wanted = {h.data_ptr() for h in hidden}
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._send(tensor) if tensor.data_ptr() in wanted else tensor, self._fetch
        )

    def _send(self, tensor: Tensor) -> _Sent:
        assert self._streams
        if self._sent and self._sent[0]() is None:  # those of an earlier step
            self._sent = [ref for ref in self._sent if ref() is not None]
        sent = _Sent(tensor, *self._streams)
        self._sent.append(weakref.ref(sent))
        return sent

    def _fetch(self, kept: Any) -> Tensor:
        if not isinstance(kept, _Sent):
            return kept
        kept.fetch()
        numbers = [number for number, ref in enumerate(self._sent) if ref() is kept]
        for ref in reversed(self._sent[max(0, numbers[0] - AHEAD) : numbers[0]] if numbers else []):
            if earlier := ref():
                earlier.fetch()
        return kept.take()


class _Sent:
    """One tensor in main memory."""

    def __init__(self, tensor: Tensor, out: torch.cuda.Stream, back: torch.cuda.Stream):
        self._device, self._stream = tensor.device, back
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._came: Tensor | None = None
        out.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(out):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(out)
        self._is_out = out.record_event()

    def fetch(self) -> None:
        """Begin to bring it back."""
        if self._came is not None:
            return
        self._stream.wait_event(self._is_out)
        with torch.cuda.stream(self._stream):
            self._came = self._host.to(self._device, non_blocking=True)
            self._is_back = self._stream.record_event()

    def take(self) -> Tensor:
        self.fetch()
        tensor, self._came = self._came, None
        assert tensor is not None
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(self._is_back)
        tensor.record_stream(compute)
        return tensor
