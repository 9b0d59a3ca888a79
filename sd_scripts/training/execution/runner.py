"""The interface of a way to run training steps, and the result of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import StepInputs
from sd_scripts.training.saving.ema import Ema
from sd_scripts.training.step_clock import Lap


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step; its tensors are on the device, without synchronization."""

    loss: Tensor
    """() mean of micro-steps and processes."""
    norm: Tensor | None
    """() gradient norm before clipping, if it was computed."""
    shape: str
    """The batch shape of all micro-steps, such as 1024x1024x1; empty if they differ."""
    lap: Lap | None = None
    """The time since the step before; filled in by Timed."""


class Runner(Protocol):
    """A way to run steps. All compute the same as Eager."""

    def step(self, batches: Sequence[Batch]) -> StepResult:
        """Train one step, whose micro-steps are these batches."""

    def forget(self) -> None:
        """Free the graphs that are recorded, because the code that they run may be freed."""


class Launch(Protocol):
    """How the two halves of a step reach the device."""

    def micro_step(self, inputs: StepInputs) -> Tensor:
        """Compute the gradients of a batch, adding to earlier micro-steps' gradients; return its mean loss ()."""

    def update(self, ema: Ema | None) -> Tensor | None:
        """Let the gradients change the weights, and `ema` if it is due; return their norm before clipping, if it is
        computed."""
