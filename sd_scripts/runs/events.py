"""What a run tells the world, one JSON object a line: the GUI reads this file and nothing else."""

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal[
    "started",
    "phase",
    "step",
    "epoch",
    "validation",
    "sample",
    "saved",
    "compile",
    "warning",
    "stopped",
    "failed",
    "finished",
    "heard",
]
Command = Literal["stop", "save", "sample"]
NUMBERS = frozenset(
    (
        *("time", "step", "max_steps", "epoch", "epochs", "done", "total", "loss", "average", "seconds", "vram"),
        *("ram", "bytes", "mtime_ns", "number", "seed", "width", "height", "images_per_step"),
        *("graphs", "recompiles", "breaks"),
    )
)
"""What is a number in every event; null says as much as nothing."""
TEXTS = frozenset(
    (
        *("kind", "id", "name", "text", "path", "prompt", "option", "error", "remedy", "details", "family"),
        *("method", "note", "resumed_from"),
    )
)
"""What is a text in every event."""
LARGEST = 2.0**63
"""Of a number in an event; what counts more is nothing that a run has."""
END: Literal["end"] = "end"
"""Written beside the commands when a person ends the processes at once: the run does not act on it, readers tell it."""


class EventLog:
    """Appends events of one run. Line-buffered, so that a reader sees whole lines only."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8", newline="\n")
        if _is_cut(path):
            self._file.write("\n")

    def __call__(self, kind: Kind | Command | Literal["end"], **payload: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), "kind": kind, **payload}) + "\n")

    def close(self) -> None:
        self._file.close()


def _is_cut(path: Path) -> bool:
    """Whether its last line was never finished, since who wrote it was killed."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def read_event(line: bytes | str) -> dict[str, Any] | None:
    """One line as an event; None for a line that holds none.

    Anybody may have written into a shared folder. So a number is a number from here on and a text is a text; what is
    said in another way is left out.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    return {name: value for name, value in event.items() if _has_valid_type(name, value)}


def _has_valid_type(name: str, value: Any) -> bool:
    if name == "seed" and value is None:  # of a sample whose prompt names none
        return True
    if name in NUMBERS:
        return _is_number(value)
    if name in TEXTS:
        return isinstance(value, str)
    if name == "lr":
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < LARGEST if isinstance(value, float) else abs(value) < LARGEST


class EventTail:
    """Reads on from where it stopped; a line still being written waits for the next call.

    A file that was cut or replaced is read from its beginning, without what was told already.
    """

    def __init__(self, path: Path):
        self._path, self._offset = path, 0
        self._file: tuple[int, int] | None = None
        self._last = self._known = float("-inf")
        """Time of the newest event, and of the newest one before the file was replaced."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            self._find_place(os.fstat(file.fileno()))
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                event = read_event(line)
                if event is None:  # a full disk cut this line; those after it are whole again
                    continue
                told = event.get("time")
                if told is not None:
                    if told <= self._known:
                        continue
                    self._last = max(self._last, told)
                yield event

    def _find_place(self, now: os.stat_result) -> None:
        if self._file is not None and (self._file != (now.st_dev, now.st_ino) or now.st_size < self._offset):
            self._offset, self._known = 0, self._last
        self._file = now.st_dev, now.st_ino
