"""Several processes that are asked to end do so together and soon, also while one compiles and the others wait for it.

A process that waits for another in a collective runs no handler of signals, and a compiler may take minutes. So a
thread hears SIGTERM, tells the other processes, and ends its own where the step does not end by itself.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import torch

from sd_scripts.training.context import Context

LOOK = 0.5
"""Seconds between two looks whether another process was asked to end."""
STEP_TIME, SAVE_TIME = 5.0, 3.5
"""Seconds that the step under way may take from then on, and those of saving a state where it does not end. Launchers
kill what is there 30 seconds after SIGTERM, queues of clusters often sooner."""
STATUS = 128 + signal.SIGTERM
KEY, LEFT = "sd_scripts/leaving", "sd_scripts/left"
"""What the processes tell each other: that one was asked to end, and that the main process has saved."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Leaving:
    """Open between the first step and the last. With one process it does nothing."""

    def __init__(self, context: Context, last_words: Callable[[bool], None]):
        """`last_words` is called in another thread before the main process leaves, with whether weights, optimizer and
        counters are those of the last step, so that they can be saved."""
        self._context, self._last_words = context, last_words
        self._works = context.world > 1 and os.name == "posix"
        self._weights = threading.Lock()
        """Held while weights, optimizer and counters are not those of the last step."""
        self._asked, self._stopping, self._saving, self._closed = (threading.Event() for _ in range(4))
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
        _forget_in_children()
        self._thread.start()

    def close(self) -> None:
        """What comes now takes as long as it takes."""
        if not self._pipe:
            return
        self._closed.set()
        signal.set_wakeup_fd(self._wakeup)
        self._thread.join()
        for end in self._pipe:
            os.close(end)
        self._pipe = None

    def stopping(self) -> None:
        """All processes have heard it at the end of a step, and save now."""
        self._stopping.set()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Meanwhile nobody leaves: half a file is worth nothing."""
        self._saving.set()
        try:
            yield
        finally:
            self._saving.clear()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Meanwhile weights, optimizer and counters are those of the last step."""
        if not self._pipe:
            yield
            return
        self._weights.release()
        try:
            yield
        finally:
            self._weights.acquire()  # while a state is saved, for ever: the process ends then

    def after_error(self) -> None:
        """Leave with the others, where an error is nothing but their end."""
        if self._pipe and self._asked.is_set() and not self._stopping.is_set():
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.is_set():
            if self._was_told():
                self._tell_others()
            elif not self._others_were_told():
                continue
            self._asked.set()
            if not self._ends_within(STEP_TIME):
                self._leave()
            return

    def _was_told(self) -> bool:
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

    def _tell_others(self) -> None:
        with contextlib.suppress(Exception):  # the process that keeps the store may be gone
            _store().set(KEY, "1")

    def _others_were_told(self) -> bool:
        with contextlib.suppress(Exception):
            return bool(_store().check([KEY]))
        return False

    def _leave(self) -> None:
        """End this process from its thread. The others wait until the main process has saved what it can: when one has
        ended, their launcher kills the rest."""
        threading.Thread(target=self._end_after, args=(SAVE_TIME,), daemon=True).start()
        if self._context.is_main:
            with contextlib.suppress(Exception):
                self._last_words(self._weights.acquire(blocking=False))
            with contextlib.suppress(Exception):
                _store().set(LEFT, "1")
        else:
            with contextlib.suppress(Exception):  # the store may have ended with the main process
                while not _store().check([LEFT]):
                    self._stopping.wait(LOOK)
        _end()

    def _end_after(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        _end()


def _end() -> None:
    with contextlib.suppress(OSError):
        print("Ended by SIGTERM in the middle of a step that took too long", file=sys.stderr, flush=True)
    os._exit(STATUS)


def _store() -> torch.distributed.Store:
    return torch.distributed.distributed_c10d._get_default_store()


_forgets = False


def _forget_in_children() -> None:
    """A process that reads images is ended by SIGTERM, too, which is no word to its parent."""
    global _forgets
    if not _forgets:
        os.register_at_fork(after_in_child=_no_wakeup)
        _forgets = True


def _no_wakeup() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
