"""Gradient checkpointing of blocks: backward recomputes a block's activations.

With offloading the checkpoints are kept in main memory; copies run while the device computes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.networks.network import NetworkOptions

Checkpoint = Callable[..., Any]
"""Calls its first argument with the others."""
AHEAD = 3
"""How many checkpoints are prefetched before backward needs them."""


def checkpoint_function(network: NetworkOptions | None) -> Checkpoint:
    """Return how blocks are checkpointed. The state of the random generators, which takes time to read and cannot be
    read while a CUDA graph is recorded, is kept only where a block draws numbers."""
    draws = network is not None and bool(network.draws or not is_built_in_network(network))
    return partial(checkpoint, use_reentrant=False, preserve_rng_state=draws)


class CheckpointOffload:
    """Use around torch.utils.checkpoint: `with offload.saving(hidden): checkpoint(block, *hidden, ...)`."""

    def __init__(self) -> None:
        self._sent: list[weakref.ref[_Sent]] = []
        """In forward order; autograd keeps them until backward has used them."""
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        """To the host and to the device: the two directions do not wait for each other."""

    def saving(self, hidden: Sequence[Tensor]) -> AbstractContextManager[object]:
        """Move the tensors of `hidden` that autograd saves during it to main memory; on the CPU they are there
        already."""
        if not hidden[0].is_cuda:
            return nullcontext()
        if self._streams is None:
            self._streams = torch.cuda.Stream(hidden[0].device), torch.cuda.Stream(hidden[0].device)
        addresses = {h.data_ptr() for h in hidden}
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: self._send(tensor) if tensor.data_ptr() in addresses else tensor, self._fetch
        )

    def _send(self, tensor: Tensor) -> _Sent:
        assert self._streams
        if self._sent and self._sent[0]() is None:  # of an earlier step
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
    """A tensor that was copied to main memory."""

    def __init__(self, tensor: Tensor, to_host: torch.cuda.Stream, to_device: torch.cuda.Stream):
        self._device = tensor.device
        self._to_device = to_device
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._fetched: Tensor | None = None
        to_host.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(to_host):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(to_host)
        self._sent_event = to_host.record_event()

    def fetch(self) -> None:
        """Start the copy back to the device."""
        if self._fetched is not None:
            return
        self._to_device.wait_event(self._sent_event)
        with torch.cuda.stream(self._to_device):
            self._fetched = self._host.to(self._device, non_blocking=True)
            self._fetched_event = self._to_device.record_event()

    def take(self) -> Tensor:
        self.fetch()
        tensor, self._fetched = self._fetched, None
        assert tensor is not None
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(self._fetched_event)
        tensor.record_stream(compute)
        return tensor
