"""Times steps, and decides whether it is worth it to compile them."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sd_scripts.data.batch import Batch
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.context import Context
from sd_scripts.training.execution.runner import Runner, StepResult
from sd_scripts.training.execution.speed_log import SpeedLog
from sd_scripts.training.step_clock import Lap, StepClock

SLOWER = 1.02
"""How many times the seconds of uncompiled steps compiled ones must take to be called slower."""
LONGEST = 200
"""Steps after which the check ends, if no shape has had enough of them."""


class Timed:
    """Times steps. The choice of compile_auto is checked: the first steps are not compiled, later ones are, and the
    run continues with the faster ones."""

    def __init__(self, inner: Runner, context: Context, compiler: Compiler, clock: StepClock):
        self._inner, self._context, self._compiler, self._clock = inner, context, compiler, clock
        self._speed = SpeedLog()
        self._laps: deque[tuple[str, Lap]] = deque()
        """Batch shapes and times of the last steps, which the device may still compute."""
        self._checks = compiler.eager_first
        self._uncompiled: Mapping[str, float] = {}
        """Median seconds of an uncompiled step by batch shape, once enough are timed."""

    def step(self, batches: Sequence[Batch]) -> StepResult:
        result = self._inner.step(batches)
        lap = self._clock.lap()
        self._laps.append((result.shape, lap))
        self._note_laps()
        return replace(result, lap=lap)

    def forget(self) -> None:
        self._inner.forget()

    def decide(self) -> bool:
        """Compile once uncompiled steps are timed; later compare both, and continue with the faster ones. Return
        whether anything has changed."""
        if not self._checks:
            return False
        medians = self._speed.medians()
        means = means_of_same_shapes(self._uncompiled, medians)
        compiles_now = self._compiler.eager_first
        enough = medians if compiles_now else means
        if not enough and self._speed.steps < LONGEST:
            return False
        self.remember()
        if compiles_now:
            self._uncompiled = medians
            self._compiler.begin()
        else:
            self._checks = False
            self._report(means)
        return True

    def remember(self) -> None:
        """Record the measurements, for the plans of later runs, and start over."""
        self._note_laps()
        self._laps.clear()  # of steps that ran as before
        compiled = self._compiler.log.totals() if self._compiler.active else None
        self._speed.remember(self._context, compiled)
        self._speed = SpeedLog()

    def _note_laps(self) -> None:
        while self._laps and self._laps[0][1].is_over():
            shape, lap = self._laps.popleft()
            self._speed.add(shape, lap.seconds())

    def _report(self, means: tuple[float, float] | None) -> None:
        """Report which steps are faster, and continue with these."""
        if means is None:
            return
        plain, compiled = (1000 * seconds for seconds in means)
        times = f"compiled steps take {compiled:.1f} ms, uncompiled ones {plain:.1f} ms"
        if not slower(means):
            self._context.emit("compile", step=0, text=f"compile_auto: {times}")
            return
        self._compiler.stop()
        self._context.warn(
            f"compile_auto: {times}, so the run continues without compiling. Turn compile off for such runs"
        )


def means_of_same_shapes(uncompiled: Mapping[str, float], compiled: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the mean seconds of an uncompiled and of a compiled step over the batch shapes that both have; None if
    they have none in common."""
    shapes = [shape for shape in uncompiled if shape in compiled]
    if not shapes:
        return None
    return statistics.fmean(uncompiled[shape] for shape in shapes), statistics.fmean(
        compiled[shape] for shape in shapes
    )


def slower(means: tuple[float, float]) -> bool:
    uncompiled, compiled = means
    return compiled > SLOWER * uncompiled
