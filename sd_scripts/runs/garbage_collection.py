"""Imports modules without the garbage collector, which visits again and again what they leave.

PyTorch, diffusers and transformers leave half a million objects, and a full collection of Python visits all of them:
an eighth of the time of the imports.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
