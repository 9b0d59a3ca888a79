"""Slow parts of a start besides Python, begun before PyTorch is imported: the GPU's driver and the disk.

Both take seconds and neither needs PyTorch. Failures here are reported later, by the code that needs the result.
"""

import contextlib
import ctypes
import os
import sys
import threading
from pathlib import Path

import psutil

from sd_scripts.families.cards.family_card import DENOISER, VAE, FamilyCard
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.settings.settings import Settings

SPARE = 1.5
"""Available main memory, relative to the files, from which on they are read ahead."""


def begin(files: list[Path]) -> None:
    """Start the CUDA context of this process and reading the model's files, in the background. `files`: as model_files
    returns them."""
    if sys.platform != "linux":  # where both were measured
        return
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true", "yes"):
        # not a daemon: the process may not exit while the driver starts
        threading.Thread(target=make_cuda_context, name="cuda-context").start()
    threading.Thread(target=read_ahead, args=(files,), name="read-ahead", daemon=True).start()


def make_cuda_context() -> int | None:
    """Make the primary context of this process's GPU, which PyTorch then finds; return its device, None without one.

    The driver's functions run without Python's lock, unlike PyTorch's own initialization.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch sets it before it starts CUDA
    with contextlib.suppress(OSError, AttributeError, ValueError):
        cuda = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        number = int(os.environ.get("LOCAL_RANK", "0"))
        if (
            cuda.cuInit(0) == 0
            and cuda.cuDeviceGet(ctypes.byref(device), number) == 0
            and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        ):
            return number
    return None


def model_files(settings: Settings, card: FamilyCard) -> list[Path]:
    """Return the single files that the run will read, the denoiser's first. Captions on disk need no text encoder."""
    cached = settings[CacheOptions].cache_text_encoder_outputs_to_disk
    read = [c.option for c in card.files.components if c.name in (DENOISER, VAE) or not cached]
    given = (settings.value(option) for option in dict.fromkeys(read))
    return [path for each in given if isinstance(each, str) and each and (path := Path(each)).is_file()]


def read_ahead(files: list[Path]) -> None:
    """Ask the system to read files into its page cache, if they leave memory for the rest."""
    with contextlib.suppress(OSError):
        if sum(file.stat().st_size for file in files) * SPARE > psutil.virtual_memory().available:
            return
        for file in files:
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
