"""Join the curves of a run with the curves of the runs that it resumes."""

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from sd_scripts.formats.regular_files import open_regular
from sd_scripts.runs.events import read_event
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.series import Series
from sd_scripts.runs.store import RunRow

MOST_RUNS = 50
"""Maximum of earlier runs searched for the state that a run resumed from, and of the chain's length."""


def predecessors(
    row: RunRow, run_state: RunState, rows: Sequence[RunRow], state_of: Callable[[int], RunState]
) -> list[int]:
    """Return the ids of the runs that this one continues, oldest first; `rows` is the list, newest first."""
    found: list[int] = []
    while (state := run_state.facts.get("resumed_from")) and len(found) < MOST_RUNS:
        before = _saved_by(str(state), row, rows)
        if before is None or before.id in found:
            break
        found.append(before.id)
        row, run_state = before, state_of(before.id)
    return found[::-1]


def _saved_by(state: str, row: RunRow, rows: Sequence[RunRow]) -> RunRow | None:
    """Return the latest earlier run that saved the state."""
    began = row.started or row.created
    earlier = [each for each in rows if each.id != row.id and (each.started or each.created) < began]
    earlier.sort(key=lambda each: each.started or each.created, reverse=True)
    return next((each for each in earlier[:MOST_RUNS] if _has_saved(each, state)), None)


def _has_saved(row: RunRow, state: str) -> bool:
    events = RunFolder(row.folder).events_file
    try:
        return state in _saved_paths(events, events.stat().st_size)
    except OSError:  # its folder is gone
        return False


@lru_cache(maxsize=256)
def _saved_paths(events: Path, size: int) -> frozenset[str]:
    """Return the paths that a run reported as saved; `size` invalidates the cache when the log grows."""
    with open_regular(events) as file:
        lines = [line for line in file if b'"saved"' in line]
    found = (read_event(line) for line in lines)
    return frozenset(str(event.get("path")) for event in found if event and event.get("kind") == "saved")


class JoinedCurves:
    """Loss, validation, step time and learning rate curves of several runs in sequence.

    Where runs overlap, the steps of the later run count.
    """

    def __init__(self, before: Sequence[RunState]):
        self._before = before
        self._lock = threading.Lock()
        """Several browsers may view a run."""
        self._begin()

    def _begin(self) -> None:
        self.losses, self.validation, self.seconds = Series(), Series(), Series()
        self.rates: dict[str, Series] = {}
        self.gpu: dict[str, Series] = {}
        self._taken: dict[str, int] = {}
        for run_state in self._before:
            self._taken.clear()
            self._append(run_state)
        self._taken.clear()

    def extend(self, run_state: RunState) -> None:
        """Append the new points of the last run."""
        with self._lock:
            if self._taken.get("loss", 0) > len(run_state.losses):  # the run was restarted in its folder
                self._begin()
            self._append(run_state)

    def _append(self, run_state: RunState) -> None:
        self._take("loss", self.losses, run_state.losses)
        self._take("validation", self.validation, run_state.validation)
        self._take("seconds", self.seconds, run_state.seconds)
        for group, rate in list(run_state.rates.items()):
            self._take(f"rate {group}", self.rates.setdefault(group, Series()), rate)
        for name, readings in list(run_state.gpu.items()):
            self._take(f"gpu {name}", self.gpu.setdefault(name, Series()), readings)

    def _take(self, name: str, to: Series, of: Series) -> None:
        taken, count = self._taken.get(name, 0), len(of)
        for step, value in zip(of.steps[taken:count], of.values[taken:count], strict=True):
            to.add(step, value)
        self._taken[name] = count
