"""The list of runs made anew from their folders: where the folders are stands in a file of lines beside the list."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sd_scripts.runs import process
from sd_scripts.runs.events import read_event
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.private import private_file
from sd_scripts.runs.run_state import ENDED, RunState

logger = logging.getLogger("sd_scripts")

KEPT = 500
"""Runs that come back, the newest: to read the folders of all that ever were would take long."""
LAST_BYTES = 65536
"""Of the events of a run: its last words are in them."""
TOLD = ("name", "tab", "family", "gpus", "owner")
"""What launch.json tells of a run for its row, all of it text."""

DESCRIBED = ("name", "note")
"""What a person may write about a run."""


class FolderIndex:
    """A line for each run of the list and for each that was forgotten; a list that is lost is not lost with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, folders: Iterable[tuple[int, str]]) -> None:
        """Write it for a list that has none."""
        if not self.path.exists():
            self._append([{"run": id, "folder": folder} for id, folder in folders])

    def add(self, id: int, folder: Path, **described: str) -> None:
        self._append([{"run": id, "folder": str(folder), **described}])

    def describe(self, id: int, **described: str) -> None:
        """A person gave the run another name, or a note: its folder does not know them."""
        self._append([{"run": id, **described}])

    def forget(self, id: int) -> None:
        self._append([{"run": id, "forgotten": True}])

    def runs(self) -> dict[int, dict[str, str]]:
        """What it says of the newest runs by id, oldest first: the folder, and what a person wrote."""
        found: dict[int, dict[str, str]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return {}
        for line in lines:
            told = read_event(line) or {}  # cut by a full disk
            id = told.get("run")
            if not isinstance(id, int) or isinstance(id, bool) or not 0 < id < 2**62:
                continue
            texts = {name: told[name] for name in ("folder", *DESCRIBED) if isinstance(told.get(name), str)}
            if told.get("forgotten"):
                found.pop(id, None)
            elif "folder" in texts:
                found.pop(id, None)
                found[id] = texts
            elif id in found:
                found[id] |= texts
        return dict(list(found.items())[-KEPT:])

    def rows(self) -> Iterator[dict[str, Any]]:
        """The runs whose folders are there, as rows; those that wait in the order in which they were added."""
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
            logger.warning(f"{self.path}: which runs there are cannot be noted ({error.strerror})")


def ended_below(folder: Path) -> list[dict[str, Any]]:
    """Rows of the runs that are over and lie in `runs` of a folder or of one in it, oldest first. Those that wait or
    run are none of them: nothing starts because somebody looked for it."""
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
    """What the folder of a run tells of it, for its row."""
    launch = read_json(folder.launch)
    launch = launch if isinstance(launch, dict) else {}
    run_state = RunState()
    for event in _events(folder.events_file):
        run_state.apply(event)
    run = None if run_state.over else process.find(folder)
    waits = bool(launch) and not (run or run_state.event_count or folder.process.exists() or folder.console.exists())
    if not run_state.over and run is None and not waits:
        run_state.mark_lost("The training process is gone and left no word about why")
    made = _made(folder, launch)
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
        "results": json.dumps(_results(run_state)),
        "process": f"{run.pid} {run.born}" if run else "",
    }


def _made(folder: RunFolder, launch: dict[str, Any]) -> float:
    created = launch.get("created")
    return float(created) if isinstance(created, int | float) else folder.path.stat().st_mtime


def _results(run_state: RunState) -> list[str]:
    paths = dict.fromkeys(made.path for made in run_state.saved)
    return [str(path) for path in paths if path.is_file()]


def _events(file: Path) -> list[dict[str, Any]]:
    """The first events and the last: what a run was to do, and how it ended. Of the rest nothing is needed here."""
    try:
        with file.open("rb") as opened:
            first = opened.read(LAST_BYTES)
            opened.seek(max(len(first), os.fstat(opened.fileno()).st_size - LAST_BYTES))
            last = opened.read()
    except OSError:
        return []
    # None: cut where the reading began or ended
    return [event for line in [*first.splitlines(), *last.splitlines()] if (event := read_event(line)) is not None]
