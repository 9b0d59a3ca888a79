"""Times the steps of a run by batch shape, and remembers them for the plans of later runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.machine.measurements import Measurement, remember
from sd_scripts.machine.nvidia import CPU, Gpu, first_gpu
from sd_scripts.planning.speeds import conditions

if TYPE_CHECKING:
    from sd_scripts.training.compiling.compiler_log import Counts
    from sd_scripts.training.context import Context

WARM_UP = 3
"""Steps of a shape that do not count: they compile, tune kernels and fill caches."""
FEWEST = 10
"""Steps of a shape for a median that is worth remembering."""
MOST = 1000
"""Steps of a shape that are kept."""


def shape_of(batches: Sequence[Batch]) -> str:
    """Return the shape that all batches of a step have, such as 1024x1024x1; empty if they differ."""
    shapes = {str(BatchShape(extent=batch.extent, images=len(batch))) for batch in batches}
    return shapes.pop() if len(shapes) == 1 else ""


class SpeedLog:
    """Collects the seconds of steps by their batch shape."""

    def __init__(self) -> None:
        self.steps = 0
        """All steps, also those that do not count."""
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._first: float | None = None

    def add(self, shape: str, seconds: float) -> None:
        """Note a step. `shape`: the common shape of its batches; empty if they differ, and then the step does not
        count."""
        self.steps += 1
        if self._first is None:
            self._first = seconds
        if shape and len(times := self._seconds[shape]) < MOST:
            times.append(seconds)

    def medians(self) -> dict[str, float]:
        """Return the median seconds of a step by batch shape, for shapes that had enough steps."""
        warm = {shape: times[WARM_UP:] for shape, times in self._seconds.items()}
        return {shape: statistics.median(times) for shape, times in warm.items() if len(times) >= FEWEST}

    def remember(self, context: Context, compiled: Counts | None) -> None:
        """Record the measurements, if there are any."""
        medians = self.medians()
        if not medians or self._first is None or not context.is_main:
            return
        gpu = Gpu(CPU)
        if context.device.type == "cuda":
            gpu = Gpu(torch.cuda.get_device_name(context.device), first_gpu().driver)
        measured = Measurement(
            **conditions(context.settings, gpu, compiled=compiled is not None and compiled.graphs > 0),
            seconds=medians,
            first_seconds=self._first,
            graphs=compiled.graphs if compiled else 0,
            compile_seconds=compiled.seconds if compiled else 0.0,
            gpu_bytes=context.memory.peak(),
        )
        remember(measured)
