"""Master weights of a trained model: float32 values that the optimizer updates, and the copies the model computes with.

With `full_bf16` or `full_fp16` there are only the copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sd_scripts.library.safetensors_io import PRECISIONS
from sd_scripts.options.settings import Settings
from sd_scripts.options.training import TrainingOptions


@dataclass(eq=False)
class Weight:
    """A trained tensor."""

    name: str
    """Module, then its parameter: `denoiser.conv_in.weight`."""
    copy: nn.Parameter
    """The parameter that the model computes with."""
    group: str
    rate: float
    master: nn.Parameter | None = None
    """The float32 value that `copy` is rounded from; None if there is only the copy."""
    sharded: nn.Parameter | None = None
    """The module's parameter, if `copy` and `master` are the rows of it that this process holds (FSDP)."""

    @property
    def learned(self) -> nn.Parameter:
        """The parameter that the optimizer updates."""
        return self.copy if self.master is None else self.master


def held_dtype(settings: Settings) -> torch.dtype:
    """Return the dtype that trained weights are held in."""
    training = settings[TrainingOptions]
    return PRECISIONS[training.mixed_precision] if training.full_bf16 or training.full_fp16 else torch.float32


def gradients_of(weights: Iterable[Weight]) -> list[Tensor]:
    """Return all gradients that exist, on masters or copies."""
    found = (w.copy.grad if w.learned.grad is None else w.learned.grad for w in weights)
    return [gradient for gradient in found if gradient is not None]


@torch.no_grad()
def collect_gradients(weights: Iterable[Weight]) -> None:
    """Add the copies' gradients to those of the masters, and clear them."""
    for weight in weights:
        gradient = weight.copy.grad
        if weight.master is None or gradient is None:
            continue
        if weight.master.grad is None:
            weight.master.grad = gradient.float()
        else:
            weight.master.grad.add_(gradient)
        weight.copy.grad = None


def clear_gradients(weights: Iterable[Weight]) -> None:
    for weight in weights:
        weight.copy.grad = weight.learned.grad = None


@torch.no_grad()
def refresh_copies(weights: Iterable[Weight]) -> None:
    """Write the copies from their masters."""
    pairs = [(weight.copy, weight.master) for weight in weights if weight.master is not None]
    if pairs:
        copies, masters = zip(*pairs, strict=True)
        torch._foreach_copy_(list(copies), list(masters))
