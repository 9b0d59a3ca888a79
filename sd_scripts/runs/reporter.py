"""Reports the progress of a run or a dataset tool, as events in its run folder, and reads the commands sent to it
there."""

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from sd_scripts.formats.disk import why_not_written
from sd_scripts.runs.events import Kind
from sd_scripts.runs.folder import RunFolder

COMMANDS = ("stop", "save", "sample")
Requests = dict[str, list[str]]
"""Command -> ids of its requests, by which the page recognizes its own; Ctrl-C has none."""


class Progress(Protocol):
    """Reports the progress of a phase; `note` adds the current activity, such as "3 of about 14 graphs"."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


class Reporter:
    """Warnings are printed too. Of several processes only the main one writes; a tool may have no run folder."""

    def __init__(self, folder: RunFolder | None, *, is_main: bool = True):
        self.folder = folder
        self.phase_name = ""
        """The phase that was reported last."""
        self._listens_from = folder.listens_from if folder else 0.0
        """Unix time; earlier commands were for an earlier run in this folder."""
        self._log = folder.log() if folder and is_main else None
        self._first = {"listens_from": self._listens_from} if self._listens_from else {}
        """Further fields of the first event."""
        self._started: dict[str, Any] = {}
        self._warned: set[str] = set()

    def emit(self, kind: Kind, **payload: Any) -> None:
        """Write an event. On a full disk it is lost, rather than the run."""
        if kind == "started":
            self._started = payload
        if self._log:
            with contextlib.suppress(OSError):
                self._log(kind, **payload, **self._first)
                self._first = {}

    def reopen_log(self) -> None:
        """Start a new event log if somebody deleted the run folder."""
        if not self._log or not self.folder or os.path.exists(self.folder.events_file):
            return
        with contextlib.suppress(OSError):
            before, self._log = self._log, self.folder.log()
            self.emit("started", **self._started)
            before.close()

    def warn(self, text: str) -> None:
        """Warn in the console and in the events."""
        self.print_warning(text)
        self.emit("warning", text=text)

    def warn_once(self, what: str, text: str) -> None:
        """Warn the first time that `what` happens."""
        if what not in self._warned:
            self._warned.add(what)
            self.warn(text)

    def print_warning(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def phase(self, name: str, **payload: Any) -> Progress:
        """Report that a phase begins; return the function that reports its progress."""
        self.phase_name = name
        self.emit("phase", name=name, **payload)

        def progress(done: int, total: int, note: str = "") -> None:
            self.emit("phase", name=name, done=done, total=total, **({"note": note} if note else {}))

        return progress

    def cancellable_phase(self, name: str) -> Progress:
        """Begin a phase before the first step; reporting its progress raises KeyboardInterrupt, as Ctrl-C does, once a
        stop was requested."""
        report = self.phase(name)

        def progress(done: int, total: int, note: str = "") -> None:
            report(done, total, note)
            if self.stop_requested():
                raise KeyboardInterrupt

        return progress

    def stop_requested(self) -> bool:
        requests = self.requests_in(self.folder.commands()) if self.folder else {}
        if "stop" in requests:
            self.emit("heard", command="stop", ids=requests["stop"], step=0)
        return "stop" in requests

    def requests_in(self, commands: Iterable[dict[str, Any]]) -> Requests:
        """Return the commands to this run. A brief disk failure ends no run: what cannot be read now is read later."""
        requests: Requests = {}
        assert self.folder
        try:
            for command in commands:
                if command.get("kind") in COMMANDS and command.get("time", 0) > self._listens_from:
                    requests.setdefault(command["kind"], []).extend([command["id"]] if command.get("id") else [])
        except OSError as error:
            self.warn_once(
                "commands",
                f"run_dir: '{self.folder.commands_file}' cannot be read: {why_not_written(error)}. The run continues "
                "and tries again at each step",
            )
        return requests

    def close(self) -> None:
        if self._log:
            with contextlib.suppress(OSError):  # a full disk, reported before
                self._log.close()
