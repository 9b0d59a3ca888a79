"""Reports how many files of a dataset are read, twice a second."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
SECONDS = 0.5

Each = TypeVar("Each")


def now_and_then(report: Progress) -> Progress:
    """Return a function that forwards calls, throttled to two a second."""
    reported = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if time.monotonic() >= reported + SECONDS:
            reported = time.monotonic()
            report(done, total)

    return progress


class ReadingProgress:
    """Counts the files of all folders together; the total grows with each folder that is found."""

    def __init__(self, report: Progress | None = None):
        self._report = now_and_then(report) if report else None
        self._done = self._total = 0

    def expect(self, count: int) -> None:
        """Add to the total."""
        self._total += count

    def skip(self, count: int) -> None:
        """Count files that need not be read."""
        self._done += count

    def each(self, files: Iterable[Each]) -> Iterator[Each]:
        """Yield the files; each counts when the next is asked for."""
        for file in files:
            yield file
            self._done += 1
            if self._report:
                self._report(self._done, self._total)
