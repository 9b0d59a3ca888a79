"""Fallback folders for a file that cannot be written to output_dir, and the wait until it can."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from sd_scripts.formats.disk import AWAY, FULL, free_bytes, same_disk
from sd_scripts.training.saving.writer import Failure

WAIT = 600.0
"""Seconds that a finished run waits for room in output_dir: enough time to free some space."""
AGAIN_EVERY = 5.0
Outlook = Literal["room", "full", "over"]
RESCUED = "sd_scripts_rescued"
"""Folder in the user's home; in a shared temporary folder its name is unpredictable."""


def fallback_folders(output_dir: Path, run_dir: Path, failures: Iterable[Failure]) -> Iterator[Path]:
    """Yield folders to write to instead of output_dir, the nearest first."""
    full = any(failure.errno in FULL for failure in failures)
    if not (full and same_disk(run_dir, output_dir)):
        yield run_dir / RESCUED
    with contextlib.suppress(RuntimeError):  # an account without a home
        yield Path.home() / RESCUED / run_dir.name
    with contextlib.suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix=f"{RESCUED}-"))


def may_pass(failures: Iterable[Failure]) -> bool:
    """Return whether waiting may help: a full disk or a disconnected drive."""
    return any(failure.errno in FULL + AWAY for failure in failures)


def look_for_room(output_dir: Path, size: int, end: float) -> Outlook:
    """Wait a moment and return whether `size` bytes fit; `end` is a time.monotonic(). Ctrl-C ends the wait."""
    try:
        time.sleep(AGAIN_EVERY)
    except KeyboardInterrupt:
        return "over"
    if time.monotonic() > end:
        return "over"
    room = free_bytes(output_dir)
    return "room" if room is None or room > size else "full"


def remove_copy(folder: Path) -> None:
    """Remove a fallback folder once its files are where they belong, and the folder above it if that is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if folder.parent.name == RESCUED:
            os.rmdir(folder.parent)
