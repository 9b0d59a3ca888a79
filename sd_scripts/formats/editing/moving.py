"""Give files and folders different paths without writing over any: all of them, or none."""

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from sd_scripts.formats.atomic_files import PART, beside
from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.words import some

TRASH = ".trash"
"""Folder for removed files, in the folder that they were in: on the same disk, a file is moved and never copied."""


def problem_of(moves: Sequence[Move]) -> str | None:
    """Return why these moves cannot be carried out, in one sentence; None if they can."""
    if missing := [move.source.name for move in moves if not os.path.lexists(move.source)]:
        return f"{some(missing)} no longer exist{'s' * (len(missing) == 1)}; reload the dataset"
    targets = [move.target for move in moves]
    leaving: set[Path] = set()
    taken = []
    for move in moves:  # a file may take the place of one that moves before it
        taken += [move.target] if os.path.lexists(move.target) and move.target not in leaving else []
        leaving.add(move.source)
    taken += [target for target in {*targets} if targets.count(target) > 1] if len({*targets}) < len(targets) else []
    if taken:
        where = repr(taken[0].parent.name)
        return f"{some([target.name for target in taken])} already exists in {where}; rename one of them first"
    return None


def carry_out(moves: Iterable[Move]) -> None:
    """Raises OSError if a file cannot be moved; the earlier ones then have moved, and put_back moves them back."""
    for move in moves:
        move.target.parent.mkdir(parents=True, exist_ok=True)
        _rename(move.source, move.target)
        _remove_empty_trash(move.source.parent)


def put_back(moves: Sequence[Move]) -> None:
    """Undo the moves that were carried out, whichever these are. Raises OSError."""
    for move in reversed(moves):
        if not os.path.lexists(move.target):
            pass  # it was not moved yet
        elif not os.path.lexists(move.source):
            move.source.parent.mkdir(parents=True, exist_ok=True)
            _rename(move.target, move.source)
        elif move.target.is_file() and filecmp.cmp(move.source, move.target, shallow=False):  # linked or copied
            move.target.unlink()
        _remove_empty_trash(move.target.parent)


def _rename(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        os.rename(source, target)  # fails if there is a folder with files in it
        return
    try:
        os.link(source, target, follow_symlinks=False)  # unlike a rename it fails if there is a file of this name
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # a different disk, or a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(17, "File exists", str(target)) from None
        _rename_or_copy(source, target)
        return
    os.unlink(source)


def _rename_or_copy(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError:
        _copy(source, target)
        os.unlink(source)


def _copy(source: Path, target: Path) -> None:
    part = beside(target, PART)
    try:
        shutil.copy2(source, part)
        with part.open("r+b") as copied:
            os.fsync(copied.fileno())
        os.rename(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _remove_empty_trash(folder: Path) -> None:
    """Remove a folder in the trash once it is empty, and then the trash."""
    while TRASH in folder.parts and folder.name:
        try:
            folder.rmdir()
        except OSError:
            return
        if folder.name == TRASH:
            return
        folder = folder.parent
