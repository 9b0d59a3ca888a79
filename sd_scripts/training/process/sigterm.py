"""SIGTERM to several processes: all exit together and soon, even while one compiles and the others wait.

A process that waits in a collective runs no signal handlers, and a compiler may take minutes. So a thread receives
SIGTERM, notifies the other processes, and ends its own process if the current step does not finish in time.
"""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from sd_scripts.training.context import Context, shared_store

LOOK = 0.5
"""Seconds between two checks for a SIGTERM to another process."""
STEP_TIME, SAVE_TIME = 5.0, 3.5
"""Seconds that the current step may still take after SIGTERM, and seconds to save a state if it does not finish.
Launchers kill remaining processes 30 seconds after SIGTERM, cluster schedulers often sooner."""
STATUS = 128 + signal.SIGTERM
KEY, LEFT = "sd_scripts/leaving", "sd_scripts/left"
"""Keys in the processes' store: one of them got SIGTERM; the main process has saved."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class SigtermWatcher:
    """Watches for SIGTERM between the first step and the last. With one process it does nothing."""

    def __init__(self, context: Context, before_exit: Callable[[bool], None]):
        """`before_exit` is called in another thread before the main process exits. Its argument is whether
        weights, optimizer and counters match the last step, so that they can be saved."""
        self._context, self._before_exit = context, before_exit
        self._works = context.world > 1 and os.name == "posix"
        self._weights = threading.Lock()
        """Held while weights, optimizer and counters do not match the last step."""
        self._signalled, self._stopping, self._saving, self._closed = (threading.Event() for _ in range(4))
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1

    def open(self) -> None:
        if not self._works or threading.current_thread() is not threading.main_thread():
            return
        self._weights.acquire()
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        _reset_in_children()
        self._thread.start()

    def close(self) -> None:
        """Stop watching: later work may take as long as it needs."""
        if not self._pipe:
            return
        self._closed.set()
        signal.set_wakeup_fd(self._wakeup)
        self._thread.join()
        for end in self._pipe:
            os.close(end)
        self._pipe = None

    def stopping(self) -> None:
        """Note that all processes noticed the stop at the end of a step and are about to save."""
        self._stopping.set()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Let no process exit during the block: an incomplete file is useless."""
        self._saving.set()
        try:
            yield
        finally:
            self._saving.clear()

    @contextlib.contextmanager
    def consistent(self) -> Iterator[None]:
        """Declare that weights, optimizer and counters match the last step during the block."""
        if not self._pipe:
            yield
            return
        self._weights.release()
        try:
            yield
        finally:
            self._weights.acquire()  # blocks for good while a state is saved: the process exits then

    def after_error(self) -> None:
        """Exit together with the others, if an error was caused by their exit."""
        if self._pipe and self._signalled.is_set() and not self._stopping.is_set():
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.is_set():
            if self._got_signal():
                self._notify_others()
            elif not self._others_got_signal():
                continue
            self._signalled.set()
            if not self._ends_within(STEP_TIME):
                self._leave()
            return

    def _got_signal(self) -> bool:
        assert self._pipe
        ready, _, _ = select.select([self._pipe[0]], [], [], LOOK)
        return bool(ready) and any(number in SIGNALS for number in os.read(self._pipe[0], 4096))

    def _ends_within(self, seconds: float) -> bool:
        while seconds > 0:
            if self._stopping.wait(LOOK) or self._closed.is_set():
                return True
            if not self._saving.is_set():
                seconds -= LOOK
        return False

    def _notify_others(self) -> None:
        with contextlib.suppress(Exception):  # the process with the store may be gone
            shared_store().set(KEY, "1")

    def _others_got_signal(self) -> bool:
        with contextlib.suppress(Exception):
            return bool(shared_store().check([KEY]))
        return False

    def _leave(self) -> None:
        """End this process from the watching thread. The others wait until the main process has saved everything it
        can: once one has exited, the launcher kills the rest."""
        threading.Thread(target=self._end_after, args=(SAVE_TIME,), daemon=True).start()
        if self._context.is_main:
            with contextlib.suppress(Exception):
                self._before_exit(self._weights.acquire(blocking=False))
            with contextlib.suppress(Exception):
                shared_store().set(LEFT, "1")
        else:
            with contextlib.suppress(Exception):  # the store may have ended with the main process
                while not shared_store().check([LEFT]):
                    self._stopping.wait(LOOK)
        _end()

    def _end_after(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        _end()


def _end() -> None:
    with contextlib.suppress(OSError):
        print("Terminated by SIGTERM during a step that took too long to finish", file=sys.stderr, flush=True)
    os._exit(STATUS)


@functools.cache
def _reset_in_children() -> None:
    """Reset the wakeup pipe in forked children: SIGTERM to a data loader worker must not notify its parent."""
    os.register_at_fork(after_in_child=_no_wakeup)


def _no_wakeup() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
