"""What people ask of a running run: stop, save, sample; from the page, or from the terminal by Ctrl-C."""

import signal
import threading
from types import FrameType
from typing import Any

import torch

from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.context import Context


def stop_asked(context: Context) -> bool:
    """Whether a run that has not begun to train shall end. Several processes begin first, and then end together."""
    if context.world > 1:
        return False
    return any(c["kind"] == "stop" and _is_ours(c, context) for c in RunFolder(context.run_dir).commands())


def _is_ours(command: dict[str, Any], context: Context) -> bool:
    return bool(command.get("time", 0) >= context.began)


class Wishes:
    """Heard once, at the end of a step; every process hears the same."""

    def __init__(self, context: Context):
        self._context = context
        self._commands = RunFolder(context.run_dir).commands()
        self._asked_to_stop = False
        # over gloo, so that the processes' main memory is asked and not their GPUs, which would have to be waited for
        self._group = torch.distributed.new_group(backend="gloo") if context.world > 1 else None
        self._handlers: dict[signal.Signals, Any] = {}

    def open(self) -> None:
        """From here on Ctrl-C ends the step instead of the process."""
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGINT, signal.SIGTERM):
                self._handlers[name] = signal.signal(name, self._stop)

    def close(self) -> None:
        """From here on Ctrl-C does what it did before."""
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def heard(self) -> set[str]:
        wishes: set[str] = set()
        if self._context.is_main:
            wishes = {str(c["kind"]) for c in self._commands if _is_ours(c, self._context)}
            if self._asked_to_stop:
                wishes.add("stop")
        if self._context.world > 1:
            holder = [wishes]
            torch.distributed.broadcast_object_list(holder, group=self._group)
            wishes = holder[0]
        return wishes

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._asked_to_stop:  # asked twice: at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._asked_to_stop = True
        print("\nStopping after this step; the state will be saved. Press Ctrl-C again to end at once.", flush=True)
