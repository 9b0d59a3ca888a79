"""Report free disk space, and explain why something could not be written."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNRESET, errno.EHOSTDOWN, errno.ENODEV)
"""A network drive or external disk that is temporarily unavailable."""
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
TORCH_SAYS_FULL = ("No space left", "os error 28", "file write failed", "PytorchStreamWriter failed", "unexpected pos")
"""In PyTorch's RuntimeErrors, which have no errno."""


class NotWritten(OSError):
    """Raised with one sentence about what could not be written; `errno` is the cause."""

    def __init__(self, what: object, error: BaseException):
        super().__init__(f"'{what}' could not be written: {why_not_written(error)}")
        self.errno = errno_of(error)


def errno_of(error: BaseException) -> int | None:
    """Return the errno of an error or of its cause."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return seen.errno
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in TORCH_SAYS_FULL):
            return errno.ENOSPC
        seen = seen.__cause__
    return None


def why_not_written(error: BaseException) -> str:
    """Return the reason in a few words, with a remedy where one is known."""
    code = errno_of(error)
    if code in FULL:
        return "the disk is full; free some space"
    if code in FORBIDDEN:
        return "no write permission for the folder; choose another one"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def sentence_of(error: Exception) -> str:
    """Return an error as a sentence; for system errors, the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"'{error.filename}': {error.strerror}" if error.filename else error.strerror
    return str(error)


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user can still write there; None if unknown. The folder need not exist yet."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return None
    return usage.free if usage.total else None


def format_bytes(size: float) -> str:
    """Format a number of bytes for people: "1.5 GB"."""
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


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Create the folder of `path`, and raise NotWritten if that, or the block's writing, fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and errno_of(error) is None:  # torch.save reports a full disk this way
            raise
        raise NotWritten(path, error) from error
