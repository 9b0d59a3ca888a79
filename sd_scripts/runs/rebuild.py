"""Rebuild the list of runs from the run folders, whose paths are kept in an index file beside the list."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sd_scripts.formats.private import private_file
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.runs import process
from sd_scripts.runs.events import LARGEST, read_event
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.run_state import ENDED, RunState

logger = logging.getLogger("sd_scripts")

KEPT = 500
"""How many of the newest runs are restored: reading all folders would take too long."""
LAST_BYTES = 65536
"""Bytes read from the end of the events, which hold the final ones."""
TOLD = ("name", "tab", "family", "gpus", "owner")
"""Row values in launch.json, all of them text."""

DESCRIBED = ("name", "note")
"""Row values that a user may edit."""


class FolderIndex:
    """A log of runs added to and removed from the list, from which a lost list is rebuilt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, folders: Iterable[tuple[int, str]]) -> None:
        """Create the index for a list that has none."""
        if not self.path.exists():
            self._append([{"run": id, "folder": folder} for id, folder in folders])

    def record(self, id: int, **entry: str | bool) -> None:
        """Record the folder of a run, a name or note by the user, which the folder does not have, or `forgotten`."""
        self._append([{"run": id, **entry}])

    def runs(self) -> dict[int, dict[str, str]]:
        """Return folder, name and note of the newest runs by id, oldest first."""
        found: dict[int, dict[str, str]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return {}
        for line in lines:
            entry = read_event(line) or {}  # cut by a full disk
            id = entry.get("run")
            if not isinstance(id, int) or isinstance(id, bool) or not 0 < id < 2**62:
                continue
            texts = {name: entry[name] for name in ("folder", *DESCRIBED) if isinstance(entry.get(name), str)}
            if entry.get("forgotten"):
                found.pop(id, None)
            elif "folder" in texts:
                found.pop(id, None)
                found[id] = texts
            elif id in found:
                found[id] |= texts
        return dict(list(found.items())[-KEPT:])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows of the runs whose folders exist; queued ones in the order in which they were added."""
        place = 0
        seen: set[str] = set()
        for id, texts in self.runs().items():
            folder = texts.pop("folder")
            if folder in seen or not Path(folder).is_dir():
                continue
            seen.add(folder)
            row = {"id": id, **row_of(RunFolder(Path(folder))), **texts}
            if row["state"] == "queued":
                place += 1
                row["place"] = place
            yield row

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
    run = None if run_state.over else process.find(folder)
    waits = bool(launch) and not (run or run_state.event_count or folder.process.exists() or folder.console.exists())
    if not run_state.over and run is None and not waits:
        run_state.mark_ended("lost", "The training process disappeared without reporting an error")
    made = _made(folder, launch)
    results = dict.fromkeys(output.path for output in run_state.saved)
    return {
        "folder": str(folder.path),
        "name": folder.path.name,
        "family": str(run_state.facts.get("family", "")),
        **{name: launch[name] for name in TOLD if isinstance(launch.get(name), str)},
        "state": "queued" if waits else run_state.state,
        "created": made,
        "started": None if waits else run_state.started or made,
        "ended": (run_state.ended or made) if run_state.over else None,
        "step": int(run_state.step),
        "max_steps": int(run_state.max_steps),
        "error": run_state.failure.get("error", ""),
        "results": json.dumps([str(path) for path in results if path.is_file()]),
        "process": f"{run.pid} {run.born}" if run else "",
    }


def _made(folder: RunFolder, launch: dict[str, Any]) -> float:
    created = launch.get("created")
    if isinstance(created, int | float) and 0 <= created < LARGEST:
        return float(created)
    return folder.path.stat().st_mtime


def _events(file: Path) -> list[dict[str, Any]]:
    """Return the first and the last events: what the run was to do, and how it ended."""
    try:
        with open_regular(file) as opened:
            first = opened.read(LAST_BYTES)
            opened.seek(max(len(first), os.fstat(opened.fileno()).st_size - LAST_BYTES))
            last = opened.read()
    except OSError:
        return []
    # None: a line cut at the edge of the read
    return [event for line in [*first.splitlines(), *last.splitlines()] if (event := read_event(line)) is not None]
