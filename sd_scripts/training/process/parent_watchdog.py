"""Parent watchdog: a training whose launcher dies finishes its step, saves its state and exits; one that was only to be
timed ends immediately."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

from sd_scripts.runs.process import STARTED_BY

PR_SET_PDEATHSIG = 1
EVERY = 1.0
"""Seconds between two checks for the parent, where the system does not signal its death."""
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Set by accelerate launch and torchrun. Without them, the parent may be a shell that is closed during the run."""
TIMED = "SD_SCRIPTS_TIMED"
"""Set by a tool that times a run. If the tool dies, nothing is worth saving."""


def end_with_launcher() -> None:
    """From now on, turn the death of the launcher into SIGTERM, and of a timing tool into SIGKILL. Call it before
    anything slow."""
    timed = TIMED in os.environ
    parent = os.getppid()
    by_gui = os.environ.get(STARTED_BY) == str(parent)  # which the training outlives
    if os.name != "posix" or not (timed or (any(name in os.environ for name in LAUNCHED) and not by_gui)):
        return
    sent = signal.SIGKILL if timed else signal.SIGTERM
    if not _kernel_signals_death(sent):
        threading.Thread(target=_watch, args=(parent, sent), daemon=True).start()
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), sent)


def _kernel_signals_death(sent: signal.Signals) -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sent, 0, 0, 0) == 0
    return False


def _watch(parent: int, sent: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY)
    os.kill(os.getpid(), sent)
