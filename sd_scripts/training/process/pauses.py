"""Ends the pauses that Python's garbage collector makes in training.

A full collection visits all that the imports and the compiler have left, which takes 0.3 to 0.6 s every few seconds.
"""

import _thread
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PAUSE = 0.03
"""Seconds that a full collection may take before its survivors are exempt from later ones."""
SOON = 0.05
"""Seconds after which a dropped Ctrl-C is repeated, when the collection is over."""


@contextmanager
def without_pauses(*, compiles: bool) -> Iterator[None]:
    """Exempt what survives a full collection of more than `PAUSE` seconds from later ones. `compiles`: something is
    compiled during it."""
    began = 0.0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - began > PAUSE:
            gc.freeze()

    if compiles:  # collections also begin in calls of compiled code, which would compile this
        watch = torch.compiler.disable(watch)
    with _interrupted_again():
        gc.callbacks.append(watch)
        try:
            yield
        finally:
            gc.callbacks.remove(watch)


@contextmanager
def _interrupted_again() -> Iterator[None]:
    """Repeat a Ctrl-C that Python has dropped: a signal that arrives during a collection is handled in the collector's
    callback, where an exception is only printed."""
    report = sys.unraisablehook

    def repeat(dropped: "sys.UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            threading.Timer(SOON, _interrupt).start()
        else:
            report(dropped)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = report


def _interrupt() -> None:
    """Send Ctrl-C to the main thread, which it wakes where the system can."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:  # on Windows
        _thread.interrupt_main()
