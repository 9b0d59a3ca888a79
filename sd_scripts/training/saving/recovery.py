"""Recovery from earlier runs in the output folder: find the newest intact state, remove unfinished files."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sd_scripts.formats.atomic_files import GONE, OLD, PART, RUNNING
from sd_scripts.runs.outputs import ENDINGS, EPOCH, LAST, STATE_ENDING, STEP
from sd_scripts.runs.process import process_born
from sd_scripts.training.saving.train_state import PROGRESS, SavedState, damage, read_saved

PROBE = re.compile(r"\.write-test-(\d+)(\.\w+)*")
CACHES = r".+\.(npz|safetensors|json)"
RUN_FILES = r".+\.(toml|json|txt)"
SECONDS_TO_WRITE = 3600.0
"""More than writing a cache file takes anywhere."""


def newest_state(
    folder: Path,
    output_name: str | None,
    warn: Callable[[str], None] = lambda _: None,
    why_not: Callable[[SavedState], str] = lambda _: "",
    since: float = 0.0,
) -> SavedState | None:
    """Return the intact state with the most steps, the later of two, or None. States written before `since` count only
    if there are no others: a run that is started again resumes from its own. A damaged one is reported through `warn`,
    and so is one for which `why_not` returns a sentence why the run cannot resume from it; the one before is taken.
    Raises ValueError if that leaves none.

    A process that was killed while it wrote or removed a state leaves nothing under its name.
    """
    wanted = re.compile(rf"({_begin(output_name)})(-step\d+|-\d+)?{STATE_ENDING}")
    readable: list[SavedState] = []
    damaged: list[str] = []
    unsuitable: dict[Path, str] = {}
    for path in _entries(folder):
        if not wanted.fullmatch(path.name):
            continue
        try:
            readable.append(read_saved(str(path)))
        except ValueError:
            damaged.append(f"'{path}' is damaged ({PROGRESS} cannot be read)")
    own = [saved for saved in readable if saved.time >= since]
    for saved in sorted(own or readable, key=lambda saved: (saved.progress.step, saved.time), reverse=True):
        if why := damage(saved):
            damaged.append(f"'{saved.folder}' is damaged ({why})")
        elif why := why_not(saved):
            unsuitable[saved.folder] = why
        else:
            for problem in damaged:
                warn(f"resume: {problem} and is skipped")
            for path, why in unsuitable.items():
                warn(f"resume: '{path}' is skipped, since it does not fit: {why.removeprefix('resume: ')}")
            return saved
    if unsuitable:
        raise ValueError(next(iter(unsuitable.values())))
    if damaged:
        raise ValueError(f"resume: no state is intact: {'; '.join(damaged)}. Remove them to start over")
    return None


def finished_file(folder: Path, output_name: str | None) -> Path | None:
    """Return the last file of an earlier run of this name; a diffusers model is a folder."""
    stem = output_name or LAST
    return next((path for ending in ENDINGS if (path := folder / f"{stem}{ending}").exists()), None)


def clean_up(folder: Path, output_name: str | None, run_dir: Path) -> None:
    """Remove the unfinished hidden files of killed processes in `folder`, its samples and its run folders. A file that
    one had set aside for a replacement is restored, unless the replacement is there."""
    names = rf"({_begin(output_name)})([-._].*)?"
    remove_leftovers(folder, rf"{names}|{PROBE.pattern}")
    remove_leftovers(folder / "sample", names if output_name else ".+")
    remove_leftovers(run_dir, RUN_FILES)
    for other_run in _entries(folder / "runs"):  # one of which another machine may be writing
        remove_leftovers(other_run, RUN_FILES, age=SECONDS_TO_WRITE)
    for path in _entries(folder):
        if (probe := PROBE.fullmatch(path.name)) and not _lives(int(probe[1])):
            _remove(path)


def clean_up_caches(folders: Iterable[Path]) -> None:
    """Remove the unfinished cache files of killed processes next to the images. Only old ones: a machine that shares
    the folder may be writing the others."""
    for folder in folders:
        remove_leftovers(folder, CACHES, age=SECONDS_TO_WRITE)


def remove_leftovers(folder: Path, names: str = ".+", age: float = 0.0) -> None:
    """Remove the unfinished hidden files of killed processes in a folder: of files whose names match the pattern
    `names`, and that are at least `age` seconds old. A file set aside is restored, unless its replacement is there."""
    hidden = re.compile(rf"\.(?P<what>{names})\.(?P<process>\d+)\.(?P<kind>{PART}|{OLD}|{GONE}|{RUNNING})")
    for name in _names(folder):
        if not (found := hidden.fullmatch(name)):
            continue
        path = folder / name
        if _lives(int(found["process"])) or (age and _age(path) < age):
            continue
        if found["kind"] == OLD and not (whole := path.with_name(found["what"])).exists():
            os.replace(path, whole)
        else:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):  # images may be in a read-only folder
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return the seconds since a file was changed; 0 if it has disappeared in the meantime."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _lives(process: int) -> bool:
    """Return whether another process of this id is alive; in a container, ids repeat after a restart."""
    return process != os.getpid() and process_born(process) is not None


def _begin(output_name: str | None) -> str:
    return re.escape(output_name) if output_name else "|".join((STEP, EPOCH, LAST))


def _entries(folder: Path) -> Iterator[Path]:
    return (folder / name for name in _names(folder))


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []
