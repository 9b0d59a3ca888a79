"""What a disk says: how much room there is, and why something could not be written."""

import errno
import os
import shutil
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNRESET, errno.EHOSTDOWN, errno.ENODEV)
"""A network drive or an external disk that is not there for a while."""
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
TORCH_SAYS_FULL = ("No space left", "os error 28", "file write failed", "PytorchStreamWriter failed", "unexpected pos")
"""In its RuntimeErrors, which have no number."""


class NotWritten(OSError):
    """One sentence about what could not be written; `errno` tells why."""

    def __init__(self, what: object, error: BaseException):
        super().__init__(f"'{what}' could not be written: {why_not_written(error)}")
        self.errno = errno_of(error)


def errno_of(error: BaseException) -> int | None:
    """The system's number of an error, also of one that was raised from it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return seen.errno
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in TORCH_SAYS_FULL):
            return errno.ENOSPC
        seen = seen.__cause__
    return None


def why_not_written(error: BaseException) -> str:
    """In a few words, with what to do where that is known."""
    code = errno_of(error)
    if code in FULL:
        return "the disk is full; free some space"
    if code in FORBIDDEN:
        return "the folder may not be written to; choose another output_dir"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def free_bytes(folder: Path) -> int | None:
    """What this user may still write there; None where the file system does not tell. The folder may be still to
    come."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return None
    return usage.free if usage.total else None


def format_bytes(size: float) -> str:
    """Bytes as people read them: 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def same_disk(one: Path, other: Path) -> bool:
    try:
        return os.stat(one).st_dev == os.stat(other).st_dev
    except OSError:
        return False
