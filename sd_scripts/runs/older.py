"""The list of runs as it was before it was a table: one folder a line, and no word about how the runs ended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sd_scripts.runs import process
from sd_scripts.runs.events import read_event
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.story import RunStory

NAME = "runs.jsonl"
KEPT = 200
LAST_BYTES = 65536
"""Of the events of a run: its last words are in them."""


def runs(file: Path) -> Iterator[dict[str, Any]]:
    """The newest runs of an older list as rows of the table, oldest first; none if there is no such list."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()[-KEPT:]
    except (OSError, UnicodeDecodeError):
        return
    for path in dict.fromkeys(_paths(lines)):
        if path.is_dir():
            yield _row(RunFolder(path))


def _paths(lines: list[str]) -> Iterator[Path]:
    for line in lines:
        try:
            yield Path(json.loads(line))
        except (ValueError, TypeError):  # cut by a full disk
            continue


def _row(folder: RunFolder) -> dict[str, Any]:
    story = RunStory()
    for event in _events(folder.events_file):
        story.tell(event)
    if not story.over and process.find(folder) is None:
        story.lost("The training process is gone and left no word about why")
    made = folder.path.stat().st_mtime
    return {
        "folder": str(folder.path),
        "name": folder.path.name,
        "family": str(story.facts.get("family", "")),
        "state": story.state,
        "created": story.started or made,
        "started": story.started or made,
        "ended": (story.ended or made) if story.over else None,
        "step": story.step,
        "max_steps": story.max_steps,
        "error": story.failure.get("error", ""),
    }


def _events(file: Path) -> list[dict[str, Any]]:
    """The first events and the last: what a run was to do, and how it ended. Of the rest nothing is needed here."""
    try:
        with file.open("rb") as opened:
            first = opened.read(LAST_BYTES)
            opened.seek(max(len(first), file.stat().st_size - LAST_BYTES))
            last = opened.read()
    except OSError:
        return []
    # None: cut where the reading began or ended
    return [event for line in [*first.splitlines(), *last.splitlines()] if (event := read_event(line)) is not None]
