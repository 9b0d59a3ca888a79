"""Shared parts of sampling during training."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def make_generator(seed: int | None) -> torch.Generator:
    """Return a generator on the CPU, so that a seed gives the same noise for every device; None: a random seed."""
    return torch.Generator().manual_seed(secrets.randbits(32) if seed is None else seed)


def apply_guidance(prediction: Tensor, scale: float) -> Tensor:
    """Combine the predictions (2, ...) for the negative prompt and the prompt; a single one stays as it is."""
    if len(prediction) == 1:
        return prediction
    without, with_prompt = prediction.chunk(2)
    return without + scale * (with_prompt - without)


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
