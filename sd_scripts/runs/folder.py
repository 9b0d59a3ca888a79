"""The folder of one run: its settings, what it tells, what it is told, and what it prints."""

from dataclasses import dataclass
from pathlib import Path

from sd_scripts.runs.events import EventLog, EventTail


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    def log(self) -> EventLog:
        return EventLog(self.path / "events.jsonl")

    def events(self) -> EventTail:
        return EventTail(self.path / "events.jsonl")

    def commands(self) -> EventTail:
        """What the GUI asked of the run: objects with a `kind` of stop, save or sample."""
        return EventTail(self.path / "commands.jsonl")

    def command(self, kind: str) -> None:
        """Ask the run for something at the end of its current step: `stop`, `save` or `sample`."""
        EventLog(self.path / "commands.jsonl")(kind)  # type: ignore[arg-type]
