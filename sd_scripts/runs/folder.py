"""The folder of one run: its settings, what it tells, what it is told, and what it prints."""

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.runs.events import Command, EventLog, EventTail

CONSOLE_TAIL_BYTES = 16384
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NOT_IN_NAMES = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    @property
    def process(self) -> Path:
        """Which process trains, as {pid, born}; written by the one who started it."""
        return self.path / "process.json"

    def log(self) -> EventLog:
        return EventLog(self.path / "events.jsonl")

    def events(self) -> EventTail:
        return EventTail(self.path / "events.jsonl")

    def commands(self) -> EventTail:
        """What the GUI asked of the run: objects with a `kind` of stop, save or sample."""
        return EventTail(self.path / "commands.jsonl")

    def command(self, kind: Command) -> None:
        """Ask the run for something at the end of its current step: `stop`, `save` or `sample`."""
        log = EventLog(self.path / "commands.jsonl")
        log(kind)
        log.close()

    def console_tail(self, lines: int = 40) -> str:
        """The last lines of what the run printed, as a terminal would show them."""
        if not self.console.exists():
            return ""
        with self.console.open("rb") as file:
            file.seek(max(0, self.console.stat().st_size - CONSOLE_TAIL_BYTES))
            text = ESCAPES.sub("", file.read().decode("utf-8", errors="replace")).replace("\r\n", "\n")
        # a progress bar rewrites its line after every \r: the last writing counts
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return "\n".join(shown[-lines:]).strip("\n")


def new_run_folder(runs: Path, name: str, now: float | None = None) -> RunFolder:
    """A fresh folder under `runs`, named by time and `name`; made at once, so that no other run takes it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    wanted = f"{stamp}-{NOT_IN_NAMES.sub('_', name)}" if name else stamp
    for path in (runs / f"{wanted}{'' if again == 0 else f'-{again + 1}'}" for again in range(1000)):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return RunFolder(path)
    raise AssertionError(f"a thousand runs in one second under {runs}")


def write_whole(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a JSON file holds; None if it is not there or not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
