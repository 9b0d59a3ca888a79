"""What training asks of an optimizer beyond `step`, as protocols: nobody asks for a class by name."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer


@runtime_checkable
class ScalesGradients(Protocol):
    """An optimizer that reads the gradients of a whole model where they are, and clips them without an extra pass."""

    clip_factor: Tensor | None
    """0-dim float32 on the device: the next step multiplies gradients by it."""

    def gradient(self, weight: Tensor) -> Tensor | None:
        """Return the gradient that the next step uses for a weight."""

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients together, without waiting for the device."""


@runtime_checkable
class RecordableOptimizer(Protocol):
    """An optimizer whose step can be recorded in a CUDA graph."""

    def begin_recording(self) -> bool:
        """Let recorded steps update the weights at their current addresses; return whether that is possible."""

    def launch(self) -> Any:
        """Launch a step's computation, to be recorded."""

    def fill_scalars(self) -> None:
        """Write what differs between two steps into the memory that the recorded kernels read."""

    def replayed(self) -> None:
        """Count a step that was replayed."""


class Capturable:
    """Makes an optimizer recordable that has all its scalars on the device, as torch's do with `capturable`."""

    def __init__(self, optimizer: Optimizer):
        self.launch: Callable[[], Any] = optimizer.step

    def begin_recording(self) -> bool:
        return True

    def fill_scalars(self) -> None:
        """Do nothing: steps are counted on the device, and schedules fill the rates there."""

    def replayed(self) -> None:
        """Do nothing: see fill_scalars."""


def recordable(optimizer: Optimizer) -> RecordableOptimizer:
    """Return the optimizer as one that can be recorded, if keeps_update_from_recording has no objection."""
    return optimizer if isinstance(optimizer, RecordableOptimizer) else Capturable(optimizer)
