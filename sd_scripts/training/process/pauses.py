"""Ends the pauses that Python's garbage collector makes in training.

A full collection visits all that the imports and the compiler have left, which takes 0.3 to 0.6 s every few seconds.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PAUSE = 0.03
"""Seconds that a full collection may take before its survivors are exempt from later ones."""


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
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
