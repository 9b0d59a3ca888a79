"""What earlier runs left in the output folder: the newest state that is whole, and pieces of unfinished files."""

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sd_scripts.library.safetensors_io import GONE, OLD, PART
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.runs.process import process_born
from sd_scripts.training.states import STATE, Saved, read_saved

NAMELESS = ("at", "epoch", "last")
"""How files begin where output_name is unset."""


def newest_state(folder: Path, output_name: str | None) -> Saved | None:
    """The state with the most steps, of two the later. Only whole ones count: a process that was killed while it wrote
    or removed one leaves nothing under its name."""
    wanted = re.compile(rf"({_begin(output_name)})(-step\d+|-\d+)?{STATE_ENDING}")
    paths = (path for path in _entries(folder) if wanted.fullmatch(path.name))
    return max(filter(None, map(_whole, paths)), key=lambda saved: (saved.progress.step, saved.time), default=None)


def _whole(path: Path) -> Saved | None:
    try:
        return read_saved(str(path)) if zipfile.is_zipfile(path / STATE) else None
    except ValueError:
        return None


def mend(folder: Path, output_name: str | None) -> None:
    """Clear away what killed processes left half done under hidden names, in `folder` and among its samples. What one
    had set aside to put another in its place comes back, unless the other is there."""
    name = _begin(output_name)
    piece = re.compile(rf"\.(?P<what>({name})([-._].*)?)\.(?P<process>\d+)\.(?P<kind>{PART}|{OLD}|{GONE})")
    probe = re.compile(r"\.write-test-(?P<process>\d+)")
    for path in (*_entries(folder), *_entries(folder / "sample")):
        found = piece.fullmatch(path.name) or probe.fullmatch(path.name)
        if not found or _lives(int(found["process"])):
            continue
        if found.re is piece and found["kind"] == OLD and not (whole := path.with_name(found["what"])).exists():
            os.replace(path, whole)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    """In a container the process before this one may have had the same number."""
    return process != os.getpid() and process_born(process) is not None


def _begin(output_name: str | None) -> str:
    return re.escape(output_name) if output_name else "|".join(NAMELESS)


def _entries(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())
