"""Keeps Python's garbage collector away from objects that stay until the process ends.

PyTorch, diffusers and transformers leave half a million objects when they are imported, and compiling adds more. A
full collection visits all of them, which takes 0.3 to 0.6 s: an eighth of the time of the imports, and later a pause
every few seconds of training.
"""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PAUSE = 0.03
"""Seconds that a full collection may take before its survivors are exempt from later ones."""


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing while modules are imported, and exempt what they leave from later collections."""
    enabled, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def without_pauses() -> Iterator[None]:
    """Exempt what survives a full collection of more than `PAUSE` seconds from later ones."""
    began = 0.0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - began > PAUSE:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
