"""What a run tells the world, one JSON object a line: the GUI reads this file and nothing else."""

import json
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
END: Literal["end"] = "end"
"""Written beside the commands when a person ends the processes at once: the run does not act on it, readers tell it."""


class EventLog:
    """Appends events of one run. Line-buffered, so that a reader sees whole lines only."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8", newline="\n")
        if _is_cut(path):
            self._file.write("\n")

    def __call__(self, kind: Kind | Command | Literal["end"], **facts: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), "kind": kind, **facts}) + "\n")

    def close(self) -> None:
        self._file.close()


def _is_cut(path: Path) -> bool:
    """Whether its last line was never finished, since who wrote it was killed."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


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
                try:
                    event = json.loads(line)
                except ValueError:  # a full disk cut this line; those after it are whole again
                    continue
                if not isinstance(event, dict):
                    continue
                told = event.get("time")
                if isinstance(told, float):
                    if told <= self._known:
                        continue
                    self._last = max(self._last, told)
                yield event

    def _find_place(self, now: os.stat_result) -> None:
        if self._file is not None and (self._file != (now.st_dev, now.st_ino) or now.st_size < self._offset):
            self._offset, self._known = 0, self._last
        self._file = now.st_dev, now.st_ino
