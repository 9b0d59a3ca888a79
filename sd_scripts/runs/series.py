"""A curve with all its points and with coarser levels: 100,000 steps in the thousand bins that a chart can show."""

import threading
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

Bin = tuple[float, float, float, float]
"""(step, low, high, mean) of the points in the bin."""


class Bins(NamedTuple):
    level: int
    start: int
    """Index of the first bin: readers replace their bins from there on."""
    bins: list[Bin]


@dataclass
class _Level:
    """The complete bins of one level."""

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    lows: "array[float]" = field(default_factory=lambda: array("d"))
    highs: "array[float]" = field(default_factory=lambda: array("d"))
    means: "array[float]" = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def bins(self, start: int, end: int) -> list[Bin]:
        part = slice(start, end)
        return list(zip(self.steps[part], self.lows[part], self.highs[part], self.means[part], strict=True))


class Series:
    """Points ordered by step. A bin of level L covers 2**L neighbours; level 0 is the points.

    Bins are stable: as points are added, only the last bin of a level changes.
    """

    def __init__(self) -> None:
        self.steps, self.values = array("d"), array("d")
        self._levels: list[_Level] = []
        """Levels 1, 2, ...: built on demand and extended incrementally."""
        self._lock = threading.Lock()
        """Several browsers read while the run adds points."""

    def add(self, step: float, value: float) -> None:
        """Add a point; a step at or before the last one replaces the curve from there on."""
        with self._lock:
            if self.steps and step <= self.steps[-1]:
                self._cut(step)
            self.steps.append(step)
            self.values.append(value)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.values[-1] if self.values else None

    def _cut(self, step: float) -> None:
        """Drop the points from `step` on: a resumed run trains those steps again."""
        kept = bisect_left(self.steps, step)
        del self.steps[kept:], self.values[kept:]
        for number, level in enumerate(self._levels, 1):
            for column in (level.steps, level.lows, level.highs, level.means):
                del column[kept >> number :]

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
            return self._bins(level, after, first, last)

    def _bins(self, level: int, after: int, first: float | None, last: float | None) -> Bins:
        start, end = self._within(first, last)
        begin, stop = max(start >> level, after), ((end - 1) >> level) + 1 if end > start else 0
        if begin >= stop:
            return Bins(level, min(begin, self._count(level)), [])
        whole = self._level(level) if level else None
        if whole is None:
            points = zip(self.steps[begin:stop], self.values[begin:stop], strict=True)
            return Bins(level, begin, [(step, value, value, value) for step, value in points])
        bins = whole.bins(begin, min(stop, len(whole)))
        if stop > len(whole):
            bins.append(self._growing(len(whole) << level))
        return Bins(level, begin, bins)

    def _within(self, first: float | None, last: float | None) -> tuple[int, int]:
        """Return the half-open index range of the points with a step in first..last."""
        start = 0 if first is None else bisect_left(self.steps, first)
        return start, len(self) if last is None else max(bisect_right(self.steps, last), start)

    def _count(self, level: int) -> int:
        return (len(self) + (1 << level) - 1) >> level

    def _level(self, level: int) -> _Level:
        """Return level 1 or above with all its complete bins, each made of two bins of the level below."""
        while len(self._levels) < level:
            self._levels.append(_Level())
        below = _Level(self.steps, self.values, self.values, self.values)
        for made in self._levels[:level]:
            for left in range(2 * len(made), len(below) - 1, 2):
                right = left + 1
                made.steps.append((below.steps[left] + below.steps[right]) / 2)
                made.lows.append(min(below.lows[left], below.lows[right]))
                made.highs.append(max(below.highs[left], below.highs[right]))
                made.means.append((below.means[left] + below.means[right]) / 2)
            below = made
        return below

    def _growing(self, start: int) -> Bin:
        """Return the incomplete bin of the points from `start` on."""
        steps, values = self.steps[start:], self.values[start:]
        return sum(steps) / len(steps), min(values), max(values), sum(values) / len(values)
