"""A training whose launcher dies is not left behind: it ends its step, saves its state and leaves."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
EVERY = 1.0
"""Seconds between two looks for the parent, where the system does not tell of its death."""
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""What accelerate launch and torchrun leave in the environment. Without them the parent may be a shell, which people
close while their run goes on."""


def end_with_launcher() -> None:
    """From here on the death of the launcher is heard as SIGTERM. Call it before anything takes its time."""
    if os.name != "posix" or not any(name in os.environ for name in LAUNCHED):
        return
    parent = os.getppid()
    if not _told_by_the_system():
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died just now
        os.kill(os.getpid(), signal.SIGTERM)


def _told_by_the_system() -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0
    return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY)
    os.kill(os.getpid(), signal.SIGTERM)
