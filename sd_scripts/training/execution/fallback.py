"""Steps that survive a compiler or a recording that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sd_scripts.data.batch import Batch
from sd_scripts.training.compiling.recovery import Recovery
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.runner import Runner, StepResult


class Fallback:
    """Runs steps in the first way of a list that still works. If that fails, the next one repeats the step: random
    draws are keyed by its number, so it is the same step."""

    def __init__(self, eager: Eager, recovery: Recovery, ways: Callable[[], Sequence[Runner]]):
        """`ways`: the runners that are left, the fastest first, and Eager at the end."""
        self._eager, self._recovery, self._ways = eager, recovery, ways
        self.choose()

    def choose(self) -> None:
        """Look again which runners are left."""
        self._runner = self._ways()[0]

    def step(self, batches: Sequence[Batch]) -> StepResult:
        try:
            return self._runner.step(batches)
        except Exception as error:
            if not self._eager.repeatable:
                raise
            with self._eager.consistent():
                recovers = self._recovery.recovers_from(error)
            if not recovers:
                raise
        with self._eager.consistent():  # not before the error is gone, and with it the failed step's allocations
            self.choose()
            self._eager.trainable.gradients.discard()
        return self.step(batches)

    def forget(self) -> None:
        self._runner.forget()
