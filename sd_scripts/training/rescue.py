"""Where a file goes that output_dir does not take, and how long a run waits until it does."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from sd_scripts.runs.disk import AWAY, FULL, free_bytes, same_disk
from sd_scripts.training.writer import Failure

WAIT = 600.0
"""Seconds that a finished run waits until output_dir takes its file: time enough to free some space."""
AGAIN_EVERY = 5.0
Outlook = Literal["room", "full", "over"]
RESCUED = "sd_scripts_rescued"
"""Folder in the user's home; in a shared temporary folder it gets a name that nobody can foresee."""


def places(output_dir: Path, run_dir: Path, failures: Iterable[Failure]) -> Iterator[Path]:
    """Folders to write to in place of output_dir, the nearest first."""
    full = any(failure.errno in FULL for failure in failures)
    if not (full and same_disk(run_dir, output_dir)):
        yield run_dir / RESCUED
    with contextlib.suppress(RuntimeError):  # an account without a home
        yield Path.home() / RESCUED / run_dir.name
    with contextlib.suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix=f"{RESCUED}-"))


def may_pass(failures: Iterable[Failure]) -> bool:
    """Whether it is worth to wait: a disk that is full, or a drive that is away."""
    return any(failure.errno in FULL + AWAY for failure in failures)


def look_for_room(output_dir: Path, size: int, end: float) -> Outlook:
    """After a short while, whether there is room for `size` bytes now; `end` is of time.monotonic(). Ctrl-C ends the
    wait."""
    try:
        time.sleep(AGAIN_EVERY)
    except KeyboardInterrupt:
        return "over"
    if time.monotonic() > end:
        return "over"
    room = free_bytes(output_dir)
    return "room" if room is None or room > size else "full"


def forget(folder: Path) -> None:
    """Remove what was rescued, once it lies where it belongs, and the folder above it if that is empty now."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if folder.parent.name == RESCUED:
            os.rmdir(folder.parent)
