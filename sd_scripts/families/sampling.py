"""Helpers for sampling during training: prepare modules for one image and restore them afterwards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put the modules in eval mode, and restore each submodule's mode afterwards."""
    training = [part for module in modules for part in module.modules() if part.training]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move the module to the device, and afterwards restore its original tensors without copying back."""
    away = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.device != device]
    originals = [tensor.data for tensor in away]
    try:
        for tensor in away:
            tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, original in zip(away, originals, strict=True):
            tensor.data = original
