"""Imports modules and makes large numbers of objects without the garbage collector, which visits them again and again.

PyTorch, diffusers and transformers leave half a million objects, and a full collection of Python visits all of them:
an eighth of the time of the imports.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing while many objects are made that stay, such as the images of a dataset."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing while modules are imported, and exempt the imported objects from later collections."""
    enabled = gc.isenabled()
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if enabled:
            gc.enable()
