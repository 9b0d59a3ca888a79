"""The time that steps take, by the clock of the device that computes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Lap:
    """The time from the end of one step to the end of the next; on a GPU it is known once the step is computed."""

    since: float | torch.cuda.Event
    until: float | torch.cuda.Event
    paused: float
    """Seconds in between that are left out."""

    def is_over(self) -> bool:
        return not isinstance(self.until, torch.cuda.Event) or self.until.query()

    def seconds(self) -> float:
        """Return its length. Call it only once it is over, so that nothing waits."""
        since, until = self.since, self.until
        if isinstance(since, torch.cuda.Event) and isinstance(until, torch.cuda.Event):
            return since.elapsed_time(until) / 1000 - self.paused
        assert isinstance(since, float)
        assert isinstance(until, float)
        return until - since - self.paused


class StepClock:
    """Measures from step to step, data loading included."""

    def __init__(self, device: torch.device):
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Restart, so that the time since the last step does not count towards the next one."""
        self._since = self._mark()
        self._paused = 0.0

    def lap(self) -> Lap:
        """Return the time since the last lap or restart."""
        lap = Lap(since=self._since, until=self._mark(), paused=self._paused)
        self._since, self._paused = lap.until, 0.0
        return lap

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block's time out of the step's seconds."""
        began = self._synchronized()
        yield
        self._paused += self._synchronized() - began

    def _mark(self) -> float | torch.cuda.Event:
        """Return this moment: on a GPU when it has computed all that is queued, since the CPU runs steps ahead."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _synchronized(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
