"""CUDA streams for code that ignores the current one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PACKAGE = "bitsandbytes"
"""It launches kernels that quantize or update on the default stream, whichever stream is current. Runs that record
their steps compute on a different one, which does not wait for it."""


@contextmanager
def on_default_stream(device: torch.device) -> Iterator[None]:
    """Run the block on the default stream: after the work queued on the current stream, and before later work."""
    if device.type != "cuda" or torch.cuda.current_stream(device) == torch.cuda.default_stream(device):
        yield
        return
    current, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
    default.wait_stream(current)
    with torch.cuda.stream(default):
        yield
    current.wait_stream(default)


@contextmanager
def waiting_for_default_stream(device: torch.device) -> Iterator[None]:
    """Let the CPU wait for the current stream before the block, and for the default stream after it: the block's
    allocations belong to the current stream, whichever one its kernels run on."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.current_stream(device).synchronize()
    yield
    torch.cuda.default_stream(device).synchronize()


def updates_on_default_stream(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer launches its kernels on the default stream."""
    return any(kind.__module__.partition(".")[0] == PACKAGE for kind in type(optimizer).__mro__)
