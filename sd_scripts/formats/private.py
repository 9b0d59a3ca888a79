"""Create files and folders that only their owner can read."""

import os
from contextlib import suppress
from pathlib import Path


def private_folder(folder: Path) -> Path:
    """Create a folder readable by its owner alone, or restrict an existing one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _close(folder, 0o700)
    return folder


def private_file(file: Path) -> Path:
    """Create an empty file readable by its owner alone, or restrict an existing one, keeping its contents."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    _close(file, 0o600)
    return file


def _close(path: Path, mode: int) -> None:
    if os.name == "posix":
        with suppress(OSError):  # not our file, or a file system without modes
            if path.stat().st_mode & 0o777 != mode:
                path.chmod(mode)
