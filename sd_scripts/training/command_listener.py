"""What people ask of a running run: stop, save, sample; from the page, or from the terminal by Ctrl-C."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from sd_scripts.runs.disk import why_not_written
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.context import Context

HANG_UP = getattr(signal, "SIGHUP", None)
"""Says that the terminal was closed, or that the connection to it broke. Windows has none."""
ENDING_SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, HANG_UP)))
COMMANDS = ("stop", "save", "sample")
Asked = dict[str, list[str]]
"""Command -> ids of those who asked for it, by which the page knows its own; Ctrl-C has none."""


def stop_asked(context: Context) -> bool:
    """Whether a run that has not begun to train shall end. Several processes begin first, and then end together."""
    if context.world > 1:
        return False
    asked = _asked(RunFolder(context.run_dir).commands(), context)
    if "stop" in asked:
        context.tell("heard", command="stop", ids=asked["stop"], step=0)
    return "stop" in asked


def _asked(commands: Iterable[Any], context: Context) -> Asked:
    """Those said to this run. A disk that fails for a moment ends no run: what cannot be read now is read later."""
    asked: Asked = {}
    for command in _readable(commands, context):
        if not isinstance(command, dict) or command.get("kind") not in COMMANDS:
            continue
        if command.get("time", 0) > context.listens_from:
            asked.setdefault(command["kind"], []).extend([str(command["id"])] if command.get("id") else [])
    return asked


def _readable(commands: Iterable[Any], context: Context) -> Iterator[Any]:
    try:
        yield from commands
    except OSError as error:
        context.warn_once(
            "commands",
            f"run_dir: '{RunFolder(context.run_dir).commands_file}' cannot be read: {why_not_written(error)}. The run "
            "goes on; it is tried again at each step",
        )


class CommandListener:
    """Heard once, at the end of a step; every process hears the same."""

    def __init__(self, context: Context):
        self._context = context
        self._commands = RunFolder(context.run_dir).commands()
        self._asked_to_stop = False
        # over gloo, so that the processes' main memory is asked and not their GPUs, which would have to be waited for
        self._group = torch.distributed.new_group(backend="gloo") if context.world > 1 else None
        self._handlers: dict[signal.Signals, Any] = {}
        self._process, self._parent = os.getpid(), os.getppid()

    def open(self) -> None:
        """From here on Ctrl-C ends the step instead of the process."""
        if threading.current_thread() is threading.main_thread():
            for name in ENDING_SIGNALS:
                if signal.getsignal(name) != signal.SIG_IGN:  # so nohup lets a run outlive its terminal
                    self._handlers[name] = signal.signal(name, self._stop)

    def close(self) -> None:
        """From here on Ctrl-C does what it did before."""
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def poll(self) -> Asked:
        """What was asked since the last time."""
        asked: Asked = {}
        if self._context.is_main:
            asked = _asked(self._commands, self._context)
        if self._asked_to_stop:
            asked.setdefault("stop", [])
        if self._context.world > 1:  # a signal may have come to any of them
            everyone: list[Asked] = [{}] * self._context.world
            torch.distributed.all_gather_object(everyone, asked, group=self._group)
            asked = {command: ids for each in reversed(everyone) for command, ids in each.items()}
        return asked

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker that reads images, which leaves with us
            return
        if self._asked_to_stop and not self._lost_its_parent():  # asked twice: at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._asked_to_stop = True
        if number == HANG_UP:
            _leave_terminal()
        with contextlib.suppress(OSError):  # the terminal may be gone
            print("\nStopping after this step; the state will be saved. Press Ctrl-C again to end at once.", flush=True)

    def _lost_its_parent(self) -> bool:
        """Whether the signal may be the system's word that the launcher died, as it does of the same Ctrl-C; once."""
        parent, self._parent = self._parent, os.getppid()
        return parent != self._parent


def _leave_terminal() -> None:
    """Whatever is printed from here on goes nowhere: writing to a terminal that is gone is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            if os.isatty(stream):
                os.dup2(nowhere, stream)
    os.close(nowhere)
