"""A curve with all its points and with coarser levels: 100,000 steps in the thousand bins that a chart can show."""

import threading
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

Bin = tuple[float, float, float, float]
"""(step, low, high, mean) of the points in the bin."""


class Bins(NamedTuple):
    level: int
    start: int
    """Index of the first bin: readers replace their bins from there on."""
    bins: list[Bin]


class Series:
    """Points ordered by step. A bin of level L covers 2**L neighbours; level 0 is the points.

    Bins are stable: as points are added, only the last bin of a level changes.
    """

    def __init__(self) -> None:
        self.steps, self.values = array("d"), array("d")
        self._lock = threading.Lock()
        """Several browsers read while the run adds points."""

    def add(self, step: float, value: float) -> None:
        """Add a point; a step at or before the last one replaces the curve from there on."""
        with self._lock:
            if self.steps and step <= self.steps[-1]:
                kept = bisect_left(self.steps, step)
                del self.steps[kept:], self.values[kept:]
            self.steps.append(step)
            self.values.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.values[-1] if self.values else None

    def level(self, most: int = 1000, first: float | None = None, last: float | None = None) -> int:
        """Return the finest level with at most `most` bins within the steps first..last."""
        with self._lock:
            start, end = self._within(first, last)
        level = 0
        while end > start and ((end - 1) >> level) - (start >> level) + 1 > max(most, 1):
            level += 1
        return level

    def bins(self, level: int, after: int = 0, first: float | None = None, last: float | None = None) -> Bins:
        """Return the bins in the steps first..last, from bin `after` on; the last may be incomplete."""
        with self._lock:
            start, end = self._within(first, last)
            begin, stop = max(start >> level, after), ((end - 1) >> level) + 1 if end > start else 0
            if begin >= stop:
                return Bins(level, min(begin, (len(self) + (1 << level) - 1) >> level), [])
            part = slice(begin << level, stop << level)
            steps, values = self.steps[part], self.values[part]
        size = 1 << level
        bins = [_bin(steps[at : at + size], values[at : at + size]) for at in range(0, len(steps), size)]
        return Bins(level, begin, bins)

    def _within(self, first: float | None, last: float | None) -> tuple[int, int]:
        """Return the half-open index range of the points with a step in first..last."""
        start = 0 if first is None else bisect_left(self.steps, first)
        return start, len(self) if last is None else max(bisect_right(self.steps, last), start)


def _bin(steps: "array[float]", values: "array[float]") -> Bin:
    return sum(steps) / len(steps), min(values), max(values), sum(values) / len(values)
