"""Check what compile_auto has chosen: the first steps of a run are not compiled, and later ones compared with them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from sd_scripts.training.context import Context
from sd_scripts.training.execution.compiler import Compiler
from sd_scripts.training.speed_log import SpeedLog

SLOWER = 1.02
"""How many times the seconds of uncompiled steps compiled ones must take to be called slower."""
LONGEST = 200
"""Steps after which the check ends, if no shape has had enough of them."""


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


def end_check(check: SelfCheck, compiler: Compiler, context: Context) -> None:
    """Report which steps are faster, and continue with these."""
    medians = check.medians()
    if medians is None:
        return
    plain, compiled = (1000 * seconds for seconds in medians)
    times = f"compiled steps take {compiled:.1f} ms, uncompiled ones {plain:.1f} ms"
    if not slower(medians):
        context.emit("compile", step=0, text=f"compile_auto: {times}")
        return
    compiler.stop()
    context.warn(f"compile_auto: {times}, so the run continues without compiling. Turn compile off for such runs")


def slower(medians: tuple[float, float]) -> bool:
    plain, compiled = medians
    return compiled > SLOWER * plain
