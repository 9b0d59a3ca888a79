"""The time that steps take, and whether it is worth it to compile them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from sd_scripts.data.batch import Batch
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.compiling.compiler_log import Counts
from sd_scripts.training.context import Context
from sd_scripts.training.execution.runner import Runner, StepResult
from sd_scripts.training.execution.speed_log import SpeedLog

SLOWER = 1.02
"""How many times the seconds of uncompiled steps compiled ones must take to be called slower."""
LONGEST = 200
"""Steps after which the check ends, if no shape has had enough of them."""


class StepClock:
    """Measures from step to step, data loading included."""

    def __init__(self, device: torch.device):
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Restart, so that the time since the last step does not count towards the next one."""
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap or restart."""
        now = time.perf_counter()
        seconds = now - self._since
        self._since = now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens meanwhile out of the step's seconds."""
        began = self._synchronized()
        yield
        self._since += self._synchronized() - began

    def _synchronized(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Timed:
    """Times steps. What compile_auto has chosen is checked: the first steps are not compiled, later ones are, and the
    run continues with the faster ones."""

    def __init__(
        self,
        inner: Runner,
        context: Context,
        compiler: Compiler,
        clock: StepClock,
        remember: Callable[[SpeedLog, Counts | None], None],
    ):
        """`remember` writes down, for the plans of later runs, what was measured and what was compiled."""
        self._inner, self._context, self._compiler, self._clock = inner, context, compiler, clock
        self._remember = remember
        self._speed = SpeedLog()
        self._check = SelfCheck() if compiler.eager_first else None

    def step(self, batches: Sequence[Batch]) -> StepResult:
        result = self._inner.step(batches)
        seconds = self._clock.lap()
        self._speed.add(result.shape, seconds)
        if self._check:
            if self._check.eager and not self._compiler.eager_first:  # memory did not suffice for uncompiled steps
                self._check.begin_compiled()
            self._check.step(result.shape, seconds)
        return replace(result, seconds=seconds)

    def forget(self) -> None:
        self._inner.forget()

    def decide(self) -> bool:
        """Compile once uncompiled steps are timed; later compare both, and continue with the faster ones. Return
        whether anything has changed."""
        check = self._check
        if not check or not (check.compiles_now or check.over):
            return False
        self.remember()
        if check.over:
            self._check = None
            self._end(check.medians())
        else:
            check.begin_compiled()
            self._compiler.begin()
        return True

    def remember(self) -> None:
        """Write down what was measured, and begin anew."""
        compiled = self._compiler.log.totals() if self._compiler.active else None
        self._remember(self._speed, compiled)
        self._speed = SpeedLog()

    def _end(self, medians: tuple[float, float] | None) -> None:
        """Report which steps are faster, and continue with these."""
        if medians is None:
            return
        plain, compiled = (1000 * seconds for seconds in medians)
        times = f"compiled steps take {compiled:.1f} ms, uncompiled ones {plain:.1f} ms"
        if not slower(medians):
            self._context.emit("compile", step=0, text=f"compile_auto: {times}")
            return
        self._compiler.stop()
        self._context.warn(
            f"compile_auto: {times}, so the run continues without compiling. Turn compile off for such runs"
        )


class SelfCheck:
    """Times the steps of a run, first uncompiled, then compiled."""

    def __init__(self) -> None:
        self.eager = True
        """Whether steps are still to run uncompiled."""
        self.plain, self.compiled = SpeedLog(), SpeedLog()
        self._steps = 0

    def step(self, shape: str, seconds: float) -> None:
        self._steps += 1
        (self.plain if self.eager else self.compiled).add(shape, seconds)

    @property
    def compiles_now(self) -> bool:
        """Whether enough uncompiled steps are timed."""
        return self.eager and (bool(self.plain.medians()) or self._steps >= LONGEST)

    def begin_compiled(self) -> None:
        self.eager, self._steps = False, 0

    @property
    def over(self) -> bool:
        """Whether enough compiled steps are timed as well."""
        return not self.eager and (bool(self._both()) or self._steps >= LONGEST)

    def medians(self) -> tuple[float, float] | None:
        """Return the mean seconds of an uncompiled and of a compiled step of the same shapes; None if unknown."""
        both = self._both()
        if not both:
            return None
        plain, compiled = zip(*both.values(), strict=True)
        return statistics.fmean(plain), statistics.fmean(compiled)

    def _both(self) -> Mapping[str, tuple[float, float]]:
        plain, compiled = self.plain.medians(), self.compiled.medians()
        return {shape: (plain[shape], compiled[shape]) for shape in plain if shape in compiled}


def slower(medians: tuple[float, float]) -> bool:
    plain, compiled = medians
    return compiled > SLOWER * plain
