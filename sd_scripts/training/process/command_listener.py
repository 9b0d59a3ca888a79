"""Commands to a run between its steps (stop, save, sample), sent by the page or with Ctrl-C in the terminal."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

import torch

from sd_scripts.runs.reporter import Requests
from sd_scripts.training.context import Context

HANG_UP = getattr(signal, "SIGHUP", None)
"""Sent when the terminal is closed or the connection to it breaks. Windows has none."""
ENDING_SIGNALS = tuple(filter(None, (signal.SIGINT, signal.SIGTERM, HANG_UP)))


class CommandListener:
    """Reads new commands once per step, at its end; every process gets the same ones."""

    def __init__(self, context: Context):
        self._context = context
        self._commands = context.folder.commands()
        self._stop_requested = False
        # over gloo, which exchanges through main memory and so needs no GPU sync
        self._group = torch.distributed.new_group(backend="gloo") if context.world > 1 else None
        self._handlers: dict[signal.Signals, Any] = {}
        self._process = os.getpid()

    def open(self) -> None:
        """Install signal handlers: Ctrl-C now stops after the step instead of killing the process."""
        if threading.current_thread() is threading.main_thread():
            for name in ENDING_SIGNALS:
                if signal.getsignal(name) != signal.SIG_IGN:  # nohup sets SIG_IGN to outlive the terminal
                    self._handlers[name] = signal.signal(name, self._stop)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def poll(self) -> Requests:
        """Return the commands that arrived since the last poll."""
        requests: Requests = {}
        if self._context.is_main:
            requests = self._context.requests_in(self._commands)
        if self._stop_requested:
            requests.setdefault("stop", [])
        if self._context.world > 1:  # a signal may have come to any of them
            everyone: list[Requests] = [{}] * self._context.world
            torch.distributed.all_gather_object(everyone, requests, group=self._group)
            requests = {command: ids for each in reversed(everyone) for command, ids in each.items()}
        return requests

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a data loader worker, which exits with its parent
            return
        # the second Ctrl-C ends it immediately; SIGTERM comes twice where a system sends it to the launcher, too
        if self._stop_requested and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._stop_requested = True
        if number == HANG_UP:
            _detach_from_terminal()
        with contextlib.suppress(OSError):  # the terminal may be gone
            print("\nStopping after this step and saving the state. Press Ctrl-C again to quit now.", flush=True)


def _detach_from_terminal() -> None:
    """Redirect output to os.devnull: writing to a terminal that is gone is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            if os.isatty(stream):
                os.dup2(nowhere, stream)
    os.close(nowhere)
