"""The event log of a run, one JSON object per line: the GUI's only source of a run's progress."""

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from sd_scripts.formats.regular_files import open_regular
from sd_scripts.formats.secrets import Hider, handed_values

Ending = Literal["stopped", "failed", "finished"]
Kind = (
    Literal["started", "phase", "step", "epoch", "validation", "sample", "saved", "uploaded", "warning", "heard"]
    | Literal["ended"]  # written by the GUI for a run that ended without a word
    | Literal["compile", "compile_check"]
    | Literal["accepted", "preview", "image", "answered"]
    | Ending
)
Command = Literal["stop", "save", "sample"]
Request = Literal["generate", "cancel"]
"""Commands to a process that generates images."""
NUMBERS = frozenset(
    (
        *("time", "step", "max_steps", "epoch", "epochs", "done", "total", "loss", "average", "seconds", "vram"),
        *("ram", "reserved", "bytes", "mtime_ns", "number", "seed", "width", "height", "frames", "fps"),
        *("images_per_step", "graphs", "recompiles", "breaks"),
    )
)
"""Keys whose values are numbers; null counts as missing."""
TEXTS = frozenset(
    (
        *("kind", "id", "name", "text", "path", "prompt", "option", "error", "remedy", "details", "family"),
        *("method", "note", "resumed_from", "media", "url", "state"),
    )
)
"""Keys whose values are strings."""
LARGEST = 2.0**63
"""Upper bound of numbers in events; anything larger is invalid."""
Kill = Literal["end"]
END: Kill = "end"
"""Logged among the commands when a user kills the processes: for readers of the log, the run ignores it."""


class EventLog:
    """Appends events of one run, without the secrets that it was handed, which errors of libraries may quote.
    Line-buffered, so that readers see complete lines only."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._secrets = Hider(handed_values(os.environ))
        self._file = path.open("a", buffering=1, encoding="utf-8", newline="\n")
        if _is_cut(path):
            self._file.write("\n")

    def __call__(self, kind: Kind | Command | Request | Kill, **payload: Any) -> None:
        line = json.dumps({"time": time.time(), "kind": kind, **payload})
        self._file.write(self._secrets.known(line) + "\n")

    def close(self) -> None:
        self._file.close()


def _is_cut(path: Path) -> bool:
    """Return whether the last line is incomplete because its writer was killed."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def read_event(line: bytes | str) -> dict[str, Any] | None:
    """Parse a line as an event; return None for any other line.

    Others may have written into a shared folder, so values of the wrong type are dropped here.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    return {name: value for name, value in event.items() if _has_valid_type(name, value)}


def _has_valid_type(name: str, value: Any) -> bool:
    if name == "seed" and value is None:  # a sample whose prompt sets none
        return True
    if name in NUMBERS:
        return _is_number(value)
    if name in TEXTS:
        return isinstance(value, str)
    if name in ("lr", "gpu"):
        return isinstance(value, dict) and all(map(_is_number, value.values()))
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < LARGEST if isinstance(value, float) else abs(value) < LARGEST


class EventTail:
    """Reads new lines since the last iteration; a line still being written waits for the next one.

    A file that was truncated or replaced is read from its beginning, without events already returned.
    """

    def __init__(self, path: Path):
        self._path, self._offset = path, 0
        self._file: tuple[int, int] | None = None
        self._last = self._known = float("-inf")
        """Time of the newest event, and of the newest one before the file was replaced."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            file = open_regular(self._path)
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
                if event is None:  # a full disk cut this line; later ones may be complete
                    continue
                logged = event.get("time")
                if logged is not None:
                    if logged <= self._known:
                        continue
                    self._last = max(self._last, logged)
                yield event

    def _find_place(self, now: os.stat_result) -> None:
        if self._file is not None and (self._file != (now.st_dev, now.st_ino) or now.st_size < self._offset):
            self._offset, self._known = 0, self._last
        self._file = now.st_dev, now.st_ino
