"""What a run tells the world, one JSON object a line: the GUI reads this file and nothing else."""

import json
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
]
Command = Literal["stop", "save", "sample"]


class EventLog:
    """Appends events of one run. Line-buffered, so that a reader sees whole lines only."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8", newline="\n")

    def __call__(self, kind: Kind | Command, **facts: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), "kind": kind, **facts}) + "\n")

    def close(self) -> None:
        self._file.close()


class EventTail:
    """Reads on from where it stopped; a line still being written waits for the next call."""

    def __init__(self, path: Path):
        self._path, self._offset = path, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    event = json.loads(line)
                except ValueError:  # a full disk cut this line; those after it are whole again
                    continue
                yield event
