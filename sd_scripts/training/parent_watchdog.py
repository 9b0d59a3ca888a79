"""Parent watchdog: a training whose launcher dies finishes its step, saves its state and exits."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
EVERY = 1.0
"""Seconds between two checks for the parent, where the system does not signal its death."""
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Set by accelerate launch and torchrun. Without them, the parent may be a shell that is closed during the run."""


def end_with_launcher() -> None:
    """Turn the death of the launcher into SIGTERM from now on. Call it before anything slow."""
    if os.name != "posix" or not any(name in os.environ for name in LAUNCHED):
        return
    parent = os.getppid()
    if not _kernel_signals_death():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGTERM)


def _kernel_signals_death() -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0
    return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY)
    os.kill(os.getpid(), signal.SIGTERM)
