"""Rebuild the list of runs from the run folders, whose paths are kept in an index file next to the list."""

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from sd_scripts.formats.private import private_file
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.runs.events import LARGEST, read_event
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.runs.run_state import ENDED, RunState
from sd_scripts.runs.watched import find_run, unreported_end

logger = logging.getLogger("sd_scripts")

KEPT = 500
"""How many of the newest runs are restored: reading all folders would take too long."""
LAST_BYTES = 65536
"""Bytes read from the end of the events, which include the final ones."""
TOLD = ("name", "tab", "family", "gpus", "owner")
"""Row values in launch.json, all of them text."""

DESCRIBED = ("name", "note")
"""Row values that a user may edit."""


@dataclass
class Remembered:
    """The index's record of a list."""

    runs: dict[int, dict[str, str]] = field(default_factory=dict)
    """Folder, name and note of the newest runs by id, oldest first."""
    order: list[int] = field(default_factory=list)
    """The queue when it was last reordered."""
    settings: dict[str, int | str] = field(default_factory=dict)

    def add(self, entry: dict[str, Any]) -> None:
        """Apply a line; it may contain anything."""
        if isinstance(order := entry.get("queue"), list):
            self.order = [id for id in order if _is_id(id)]
        for name in ("paused", "after_failure"):
            if name in entry:
                self.settings[name] = int(bool(entry[name]))
        if _is_text(reason := entry.get("pause_reason")):
            self.settings["pause_reason"] = reason
        id = entry.get("run")
        if not _is_id(id):
            return
        texts = {name: entry[name] for name in ("folder", *DESCRIBED) if _is_text(entry.get(name))}
        if entry.get("forgotten"):
            self.runs.pop(id, None)
        elif "folder" in texts:
            self.runs.pop(id, None)
            self.runs[id] = texts
        elif id in self.runs:
            self.runs[id] |= texts


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a string that SQLite can store; JSON may have half of a surrogate pair."""
    return isinstance(value, str) and value == value.encode("utf-8", "replace").decode()


class FolderIndex:
    """A log of facts in a list but not in the run folders, from which a lost list is rebuilt: which runs it has, how
    the user described them, and the queue's order and settings."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, folders: Iterable[tuple[int, str]]) -> None:
        """Create the index for a list that has none."""
        if not self.path.exists():
            self._append([{"run": id, "folder": folder} for id, folder in folders])

    def record(self, id: int, **entry: str | bool) -> None:
        """Record the folder of a run, a name or note by the user, which the folder does not have, or `forgotten`."""
        self._append([{"run": id, **entry}])

    def record_queue(self, order: Sequence[int]) -> None:
        """Record in which order the queued runs start."""
        self._append([{"queue": list(order)}])

    def record_settings(self, **values: int | str) -> None:
        self._append([values])

    def remembered(self) -> Remembered:
        found = Remembered()
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return found
        for line in lines:
            found.add(read_event(line) or {})  # cut by a full disk
        found.runs = dict(list(found.runs.items())[-KEPT:])
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows of the runs whose folders exist; queued ones have their places."""
        remembered = self.remembered()
        seen: set[str] = set()
        rows: dict[int, dict[str, Any]] = {}
        for id, texts in remembered.runs.items():
            folder = texts["folder"]
            if folder not in seen and Path(folder).is_dir():
                seen.add(folder)
                rows[id] = {"id": id, **row_of(RunFolder(Path(folder))), **texts}
        queue = [id for id, row in rows.items() if row["state"] == "queued"]  # later ones were added at the end
        queue.sort(key=lambda id: remembered.order.index(id) if id in remembered.order else len(remembered.order))
        for place, id in enumerate(queue, 1):
            rows[id]["place"] = place
        yield from rows.values()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        try:
            with private_file(self.path).open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:
            logger.warning(f"{self.path}: the index of runs cannot be written ({error.strerror})")


def ended_below(folder: Path) -> list[dict[str, Any]]:
    """Return rows of the finished runs in `runs` below a folder or one of its subfolders, oldest first. Queued and
    running ones are excluded, so that a search never starts anything."""
    found: list[Path] = []
    for parent in (folder, *_folders_in(folder)):
        found += [path for path in _folders_in(parent / "runs") if RunFolder(path).events_file.is_file()]
    newest = sorted(found, key=lambda path: path.stat().st_mtime)[-KEPT:]
    rows = [row_of(RunFolder(path.absolute())) for path in newest]
    return sorted((row for row in rows if row["state"] in ENDED), key=lambda row: row["created"])


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def row_of(folder: RunFolder) -> dict[str, Any]:
    """Return the row of a run, from its folder."""
    launch = read_json(folder.launch)
    launch = launch if isinstance(launch, dict) else {}
    run_state = RunState()
    for event in _events(folder.events_file):
        run_state.apply(event)
    with contextlib.suppress(OSError):
        for command in folder.commands():
            run_state.add_command(command)
    run = None if run_state.over else find_run(folder)
    waits = bool(launch) and not (run or run_state.event_count or folder.process.exists() or folder.console.exists())
    if not run_state.over and run is None and not waits:
        end = unreported_end(folder, run_state)
        run_state.mark_ended(end.state, end.why, ended=end.ended)
    made = _made(folder, launch)
    return {
        "folder": str(folder.path),
        "name": folder.path.name,
        "family": str(run_state.facts.get("family", "")),
        **{name: launch[name] for name in TOLD if _is_text(launch.get(name))},
        "state": "queued" if waits else run_state.state,
        "created": made,
        "started": None if waits else run_state.started or made,
        "ended": (run_state.ended or made) if run_state.over else None,
        "process": run.key if run else "",
        **row_values(run_state),
    }


def row_values(run_state: RunState) -> dict[str, Any]:
    """Return the columns that follow from how far a run is."""
    results = [output.path for output in run_state.saved if not output.path.name.endswith(STATE_ENDING)]
    if run_state.over:
        results = [path for path in results if path.exists()]
    return {
        "step": int(run_state.step),
        "max_steps": int(run_state.max_steps),
        "results": [str(path) for path in dict.fromkeys(results)],
        "error": run_state.failure.get("error", ""),
    }


def _made(folder: RunFolder, launch: dict[str, Any]) -> float:
    created = launch.get("created")
    if isinstance(created, int | float) and 0 <= created < LARGEST:
        return float(created)
    return folder.path.stat().st_mtime


def _events(file: Path) -> list[dict[str, Any]]:
    """Return the first and the last events: the run's purpose, and how it ended."""
    try:
        with open_regular(file) as opened:
            first = opened.read(LAST_BYTES)
            opened.seek(max(len(first), os.fstat(opened.fileno()).st_size - LAST_BYTES))
            last = opened.read()
    except OSError:
        return []
    # None: a line cut at the edge of the read
    return [event for line in [*first.splitlines(), *last.splitlines()] if (event := read_event(line)) is not None]
