"""A resident process: it reads requests from commands.jsonl of its run folder, and reports in events.jsonl.

Commands, one JSON object a line: {"kind": "generate", "id": ..., "values": {option: value}}, {"kind": "cancel", "id":
...}, {"kind": "stop"}. Events: `accepted` (id), `phase` (name, done, total, id), `image` (id, path, parameters) and
`answered` (id, and error if it failed), besides the events of every run.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sd_scripts.families.common.family import Family
from sd_scripts.formats.disk import sentence_of
from sd_scripts.generating.work import Cancelled, Worker
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.runs import process
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.generate_settings import problems, settings_of
from sd_scripts.settings.settings import Check

PAUSE = 0.1
"""Seconds between two looks for commands."""


class Server:
    def __init__(self, family: Family, reporter: Reporter, checks: tuple[Check, ...], idle: float | None):
        """`idle`: seconds without a request after which it ends; None: never."""
        assert reporter.folder
        self._family = family
        self._reporter = reporter
        self._checks = checks
        self._idle = idle
        self._listens_from = reporter.folder.listens_from
        self._commands = reporter.folder.commands()
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._cancelled: set[str] = set()
        self._stopping = False
        self._worker = Worker(family, reporter)
        self._parent = process.parent()

    def run(self) -> None:
        """Answer requests until a command stops it, until idle for long enough, or until its parent is gone."""
        self._reporter.emit("started", family=self._family.card.name, method=GENERATE)
        self._reporter.phase("waiting")
        since = time.monotonic()
        while not self._stopping:
            self._read_commands()
            if self._waiting:
                self._answer(self._waiting.popleft())
                self._reporter.phase("waiting")
                since = time.monotonic()
            elif (self._idle and time.monotonic() - since > self._idle) or os.getppid() != self._parent:
                return
            else:
                time.sleep(PAUSE)

    def _read_commands(self) -> None:
        for command in self._commands:
            if command.get("time", 0) <= self._listens_from:
                continue
            match command.get("kind"):
                case "generate":
                    self._waiting.append(command)
                    self._reporter.emit("accepted", id=str(command.get("id")))
                case "cancel":
                    self._cancel(str(command.get("id")))
                case "stop" | "end":
                    self._stopping = True

    def _cancel(self, id: str) -> None:
        """Answer a waiting request immediately, since the one before it may take minutes; record another's id for
        it."""
        waits = next((command for command in self._waiting if str(command.get("id")) == id), None)
        if waits is None:
            self._cancelled.add(id)
            return
        self._waiting.remove(waits)
        self._reporter.emit("answered", id=id, seconds=0.0, error="Cancelled")

    def _check(self, id: str) -> None:
        self._read_commands()
        if self._stopping or id in self._cancelled:
            raise Cancelled

    def _answer(self, command: Mapping[str, Any]) -> None:
        """Process a request; its problems are reported, and the next one is answered."""
        id = str(command.get("id"))
        began = time.monotonic()
        error, details = "", ""
        try:
            self._check(id)
            self._generate(command.get("values"), id, partial(self._check, id))
        except Cancelled:
            error = "Cancelled"
        except (ValueError, OSError) as known:
            error = sentence_of(known)
        except Exception as unknown:  # the model may be in any state
            error, details = f"{type(unknown).__name__}: {unknown}", traceback.format_exc()
            self._worker.close()
        failure = {"error": error, "details": details} if error else {}
        self._reporter.emit("answered", id=id, seconds=round(time.monotonic() - began, 2), **failure)

    def _generate(self, values: object, id: str, check: Callable[[], None]) -> None:
        if not isinstance(values, dict):
            raise ValueError("values: must be an object with options")
        known = {**values, "resident": True}
        settings = settings_of(self._family.card.name, {}, known)
        # `resident` allows no prompt, which a request must have
        if not settings.value("prompt") and not settings.value("prompt_file"):
            raise ValueError("prompt: not set; write a prompt")
        if wrong := list(map(str, problems(settings, *self._checks))):
            raise ValueError("\n".join(wrong))
        self._worker.run(settings, id, check)
