"""The folder of one run: its settings, events, commands and console output."""

import math
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sd_scripts.formats import documents
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.runs.events import Command, EventLog, EventTail, Kill

CONSOLE_TAIL_BYTES = 16384
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
CONSOLE_MOST_BYTES = 20 * 2**20
NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class ConsoleLines(NamedTuple):
    lines: list[tuple[int, str]]
    """(line number from 1, text)."""
    total: int
    """Number of all lines, or of all matches."""


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
        """The training process, as {pid, born}; written by whoever started it."""
        return self.path / "process.json"

    @property
    def launch(self) -> Path:
        """How to start it, as {argv, environment, secrets}; secrets by name only."""
        return self.path / "launch.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    def log(self) -> EventLog:
        return EventLog(self.events_file)

    def events(self) -> EventTail:
        return EventTail(self.events_file)

    def record_end(self, state: str, error: str, ended: float | None) -> None:
        """Add the end of a run that did not report it itself to the events. A folder that was deleted is not made
        again. Raises OSError if the events cannot be written."""
        if not self.path.is_dir():
            return
        log = self.log()
        try:
            log("ended", time=ended or time.time(), state=state, error=error)
        finally:
            log.close()

    @property
    def commands_file(self) -> Path:
        return self.path / "commands.jsonl"

    def commands(self) -> EventTail:
        """Return the commands of the GUI: objects whose `kind` is stop, save or sample."""
        return EventTail(self.commands_file)

    @property
    def listens_from(self) -> float:
        """Return the time of an earlier run's last event, until which commands were for it; 0 in a new folder, where a
        command may precede the run."""
        return max((event.get("time", 0.0) for event in self.events() if isinstance(event, dict)), default=0.0)

    @property
    def began(self) -> float:
        """Return the time of the first event; infinity in a new folder."""
        return next((event.get("time", 0.0) for event in self.events()), math.inf)

    def command(self, kind: Command | Kill) -> str:
        """Send `stop`, `save` or `sample` to the run, for the end of its current step.

        Returns the id with which the run will acknowledge it.
        """
        id = secrets.token_hex(4)
        log = EventLog(self.commands_file)
        try:
            log(kind, id=id)
        finally:
            log.close()
        return id

    def console_tail(self, lines: int = 40) -> str:
        """Return the last lines of the run's output, as a terminal would show them."""
        newest = self._console_end(CONSOLE_TAIL_BYTES).split(b"\n")[-lines - 1 :]
        return "\n".join([_shown(line) for line in newest][-lines:]).strip("\n")

    def console_lines(self, find: str = "", last: int = 400) -> ConsoleLines:
        """Return the last lines with their numbers, or the last that contain `find`, ignoring case.

        Of a very long console only the newest part is read, and line numbers count from there.
        """
        printed = self._console_end(CONSOLE_MOST_BYTES).removesuffix(b"\n")
        total = printed.count(b"\n") + 1 if printed else 0
        if not find:
            newest = printed.rsplit(b"\n", last)[-min(last, total) :] if total else []
            first = total - len(newest) + 1
            return ConsoleLines([(number, _shown(line)) for number, line in enumerate(newest, first)], total)
        wanted = find.casefold()
        shown = ((number, _shown(line)) for number, line in enumerate(printed.split(b"\n"), 1))
        found = [(number, line) for number, line in shown if wanted in line.casefold()]
        return ConsoleLines(found[-last:], len(found))

    def _console_end(self, most: int) -> bytes:
        try:
            with open_regular(self.console) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read(most)
        except OSError:  # not there yet, or deleted
            return b""


def _shown(line: bytes) -> str:
    """Return a line as a terminal shows it: a progress bar rewrites it after every \\r, and the last writing counts."""
    return ESCAPES.sub("", line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace"))


def new_run_folder(runs: Path, name: str, now: float | None = None) -> RunFolder:
    """A fresh folder under `runs`, named by time and `name`; created immediately, so that no other run takes it."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    wanted = f"{stamp}-{NOT_IN_NAMES.sub('_', name)}" if name else stamp
    for path in (runs / f"{wanted}{'' if again == 0 else f'-{again + 1}'}" for again in range(1000)):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return RunFolder(path)
    raise AssertionError(f"a thousand runs in one second under {runs}")


def read_json(path: Path) -> Any:
    """Contents of a JSON file; None if it is missing or incomplete."""
    try:
        return documents.read_json(path)
    except ValueError:
        return None
