"""The gradients of a step, as runners see them: collected by each micro-step, used by one update."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class GradientBuffer(ABC):
    """The gradients of all that is trained.

    Their memory is free between steps, since the memory peak comes before the first gradient is ready. Once a graph is
    recorded they stay at fixed addresses, where graphs write and read them.
    """

    filled: bool = False
    """Whether gradients of the current step are collected, to which the next micro-step adds."""

    def begin(self) -> None:  # noqa: B027
        """Clear the leftovers of a replayed update. Called before each micro-step that is not replayed."""

    @abstractmethod
    def collect(self) -> None:
        """Collect the gradients of a micro-step, after its backward."""

    @abstractmethod
    def named(self) -> dict[str, Tensor]:
        """Return the gradients that are collected so far by name, for reading before the update."""

    @abstractmethod
    def average(self, processes: int) -> None:
        """Average the gradients over the processes, once before the update."""

    @abstractmethod
    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradients to `max_norm` unless that is 0; return their norm before clipping, on the device."""

    @abstractmethod
    def clear(self) -> None:
        """Clear the gradients after an update, and free their memory unless graphs write there."""

    def discard(self) -> None:
        """Discard the gradients of a step that failed and restarts."""
        self.clear()

    # What recorded graphs need (recorded.py); never called for what cannot be recorded

    def settle(self) -> bool:
        """Move gradients to where recorded graphs write them; return whether all of the step are there."""
        return False

    def fix(self) -> None:
        """Let gradients stay where they are now. Called while a micro-step is recorded, after it has collected them."""
        raise NotImplementedError

    def written_by_graph(self) -> None:
        """Note that a replayed graph has collected the gradients of a micro-step."""
        raise NotImplementedError

    def used_by_graph(self) -> None:
        """Note that a replayed graph has updated the weights with them."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the memory that was fixed, because the graphs are freed."""
        raise NotImplementedError
