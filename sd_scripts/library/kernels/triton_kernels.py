"""Kernels in Triton are used where Triton can build them, which also requires a C compiler."""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Importing it takes half a second, so modules of kernels are imported where one is launched."""
REMEDY = "install a C compiler, such as gcc"


def built_for(device: torch.device, module: str, attempt: Callable[[Any], object], without: str) -> Any:
    """Return a module of kernels that have been tried on a device, or None to use plain PyTorch.

    `attempt` is called with the module and runs one of its kernels. If that fails, the log gives the reason, and the
    consequence `without` them. Asking again tries again: keep the answer.
    """
    if device.type != "cuda" or not HAS_TRITON:
        return None
    try:
        kernels = importlib.import_module(module)
        with torch.cuda.device(device):
            attempt(kernels)
    except Exception as error:  # of the C compiler, of Triton's own kinds, or of the driver
        logger.warning("Triton cannot build kernels, so %s; %s: %s", without, REMEDY, error)
        return None
    return kernels
