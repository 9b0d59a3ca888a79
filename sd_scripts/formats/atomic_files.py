"""Files and folders that appear whole or not at all: written under a hidden name, flushed and renamed."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sd_scripts.formats.documents import LONGEST_PART, name_problem

PART, OLD, GONE, RUNNING = "part", "old", "gone", "run"
"""Suffixes of hidden names: a file being written, one about to be replaced, one being removed, and the
mark of a run that writes files of this name."""


def beside(path: Path, kind: str) -> Path:
    """Return this process's hidden name for the PART, OLD, GONE or RUNNING of `path`; training/saving/recovery.py
    removes the files of killed processes."""
    return path.with_name(f".{path.name}.{os.getpid()}.{kind}")


def why_unwritable(path: Path) -> str:
    """Return why no file can be written to `path`, whose folder need not exist yet; "" if one can. It is tried with an
    empty file, which is removed: permissions do not show read-only and virtual file systems."""
    if problem := name_problem(str(path)):
        return problem
    part = beside(path.absolute(), PART)
    if (more := len(part.name.encode()) - LONGEST_PART) > 0:
        return f"a name of {len(path.name.encode()):,} bytes is too long; make it {more:,} bytes shorter"
    folder = next(each for each in part.parents if os.path.lexists(each))
    if not folder.is_dir():
        return f"'{folder}' is not a folder"
    trial = part if folder == part.parent else beside(folder / "x", PART)
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block it replaces `path`, or is removed if that failed."""
    part = beside(path, PART)
    try:
        yield part
        _sync(part)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):  # it was renamed, or never created
            part.unlink()


@contextlib.contextmanager
def atomic_folder(path: Path, mark: str | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end of the block it replaces `path`, or is removed if that failed.

    With `mark`, raise OSError if `path` exists without a file of this name: it is a different kind of folder, and
    is kept.
    """
    part = beside(path, PART)
    old = beside(path, OLD)
    if mark and path.exists() and not (path / mark).is_file():
        raise OSError("a file or folder of this name exists and is not a model; choose another output_name")
    try:
        part.mkdir(parents=True)
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(part, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file. Raises OSError."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def remove_whole(folder: Path) -> None:
    """Remove a folder. It is renamed first, since half a folder under its name could be taken for a complete one."""
    gone = beside(folder, GONE)
    os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(file: Path) -> None:
    with contextlib.suppress(PermissionError), file.open("r+b") as opened:  # a copy of a read-only file
        os.fsync(opened.fileno())
