"""The folder in which torch.compile keeps compiled code: where it is, its contents, and how to clear it; no torch.

PyTorch's own folder is not keyed by the CPU: code that was compiled for a different one writes past its buffers. Ours
is keyed by a fingerprint, unless TORCHINDUCTOR_CACHE_DIR names a folder.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.formats.atomic_files import remove_whole, write_whole
from sd_scripts.formats.private import private_folder
from sd_scripts.machine.compile_fingerprint import fingerprint
from sd_scripts.runs import process
from sd_scripts.runs.store import state_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable from which PyTorch, and Triton below it, read the folder."""
COMPILERS = frozenset(
    ("aotautograd", "fxgraph", "triton", "locks", "cache", "dynamo", "precompiled_headers", "autotune", "pgo", "bmm")
)
"""Folders that the compiler creates, besides those with two characters for files by hash."""
SHARD = re.compile(r"[a-z2-7]{2}")
OURS = "compiled"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Contents of a cache folder."""

    folder: Path
    graphs: int
    files: int
    size: int
    """Bytes."""
    oldest: float | None
    """When its oldest file was written, in seconds since 1970; None if there is none."""
    newest: float | None
    chosen_by_user: bool
    """Whether the environment names the folder."""
    others: int
    """Bytes in our folders for other versions and CPUs."""


def cache_folder() -> Path:
    """Return the folder that the compiler uses here: the one that the environment names, else ours for this machine."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else own_folder()


def own_folder() -> Path:
    return _root() / fingerprint().key()


def use_own_folder() -> None:
    """Let the compiler of this process and its children use our folder, unless the environment names one.

    Call it before torch compiles. Without a folder to write to, PyTorch chooses one.
    """
    if not os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            os.environ[VARIABLE] = str(private_folder(own_folder()))


def is_chosen_by_user() -> bool:
    return bool(os.environ.get(VARIABLE)) and cache_folder() != own_folder()


def folder_problem() -> str:
    """Return why inductor cannot compile C++ code into the chosen folder; empty if it can."""
    folder = cache_folder()
    if not is_chosen_by_user() or _is_compilable(folder):
        return ""
    return (
        f"{VARIABLE}: inductor cannot compile into '{folder}', since the path contains a space or a quotation mark; "
        "choose another folder, or unset the variable"
    )


def _root() -> Path:
    """Return the folder of our cache folders. inductor does not quote paths in the commands that it runs."""
    home = _cache_home() / "sd-scripts-studio" / OURS
    if _is_compilable(home):
        return home
    user = f"{os.getuid()}" if sys.platform != "win32" else os.environ.get("USERNAME", "").replace(" ", "_")
    other = Path(tempfile.gettempdir()) / f"sd-scripts-{user}" / OURS
    return other if _is_compilable(other) and _is_private(other.parent) else home


def _cache_home() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _is_compilable(folder: Path) -> bool:
    if sys.platform == "win32":
        return " " not in str(folder)
    return shlex.quote(str(folder).replace("+", "")) == str(folder).replace("+", "")


def _is_private(folder: Path) -> bool:
    """Return whether only we can write there: its contents will be executed."""
    try:
        private_folder(folder)
        return sys.platform == "win32" or (folder.lstat().st_uid == os.getuid() and not folder.is_symlink())
    except OSError:
        return False


def contents(folder: Path | None = None) -> Contents:
    """Return the contents of a cache folder, by default the one in use. It takes a moment if there are many files."""
    folder = cache_folder() if folder is None else folder
    found = [each for each in _stats(folder) if each]
    times = [each.st_mtime for each in found]
    return Contents(
        folder=folder,
        graphs=graphs_in(folder),
        files=len(found),
        size=sum(each.st_size for each in found),
        oldest=min(times, default=None),
        newest=max(times, default=None),
        chosen_by_user=is_chosen_by_user(),
        others=sum(each.st_size for other in other_folders() for each in _stats(other)),
    )


def graphs_in(folder: Path) -> int:
    """Return the number of graphs in a cache folder; forward and backward of a block are one."""
    with contextlib.suppress(OSError):
        return sum(1 for each in (folder / "aotautograd").iterdir() if each.is_dir())
    return 0


def other_folders() -> list[Path]:
    """Return our cache folders for versions and CPUs other than this machine's."""
    own = own_folder()
    with contextlib.suppress(OSError):
        return sorted(each for each in own.parent.glob("torch-*") if each != own and each.is_dir())
    return []


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the compiler's files below a cache folder; the user may have named one with other files too."""
    for part in _parts(folder):
        for inside, _, names in os.walk(part):
            yield from (Path(inside, name) for name in names)


def _parts(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if is_compilers(each))
    except OSError:
        return []


def is_compilers(folder: Path) -> bool:
    """Return whether the compiler made this folder, judged by its name and the names of the files in it."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if folder.name in COMPILERS:
        return True
    if not SHARD.fullmatch(folder.name):
        return False
    # a file is in the folder that the second and third character of its name, a hash, give
    files = [each.name for each in folder.iterdir() if each.is_file() and not each.name.endswith(".tmp")]
    return bool(files) and all(name[1:3] == folder.name and len(name) > 40 for name in files)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for file in files_in(folder):
        with contextlib.suppress(OSError):  # a run is writing it
            yield file.stat()


def clear(folder: Path | None = None, *, others: bool = False) -> int:
    """Remove the compiler's files from the cache folder, with `others` also our folders for other versions and CPUs;
    return how many bytes that were. Raises ValueError while a training uses them."""
    folders = [cache_folder() if folder is None else folder, *(other_folders() if others else ())]
    for each in folders:
        refuse_in_use(each, "cleared")
    removed = 0
    for each in folders:
        removed += sum(found.st_size for found in _stats(each))
        for part in _parts(each):
            try:
                remove_whole(part)
            except OSError as error:
                raise ValueError(f"'{part}' cannot be removed ({error.strerror})") from error
        if each in other_folders():
            shutil.rmtree(each, ignore_errors=True)
    return removed


def refuse_in_use(folder: Path, what: str) -> None:
    """Raise ValueError if a training uses a cache folder, which then cannot be cleared, imported into or exported."""
    if users_of(folder):
        raise ValueError(f"A training uses the compiler cache; it can be {what} when no compiled training runs")


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Note that this process uses the cache folder during the block."""
    mark = _marks() / f"{os.getpid()}.json"
    with contextlib.suppress(OSError):
        private_folder(mark.parent)
        write_whole(mark, json.dumps({"process": process.process_key(), "folder": str(cache_folder())}))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def users_of(folder: Path) -> list[int]:
    """Return the ids of the training processes that use a cache folder; marks of killed ones are removed."""
    found = []
    for mark in _marks().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            entry = json.loads(mark.read_text(encoding="utf-8"))
            if not process.is_alive(str(entry["process"])):
                mark.unlink()
            elif Path(entry["folder"]) == folder:
                found.append(int(mark.stem))
    return sorted(found)


def _marks() -> Path:
    return state_folder() / "compiling"
