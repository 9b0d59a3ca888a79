"""The compiler cache as one file: export it, and import it on a machine of the same kind, which then starts warm.

The file is a zip of the cache folder with the fingerprint of the machine that compiled. It contains machine code and
pickled Python objects, which compiling executes: import only files that you trust.
"""

import contextlib
import json
import lzma
import os
import shutil
import struct
import sysconfig
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.disk import NotWritten, format_bytes, free_bytes, why_not_written
from sd_scripts.formats.private import private_folder
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.formats.words import shortened
from sd_scripts.machine import nvidia
from sd_scripts.machine.compile_cache import COMPILERS, SHARD, cache_folder, files_in, graphs_in, refuse_in_use
from sd_scripts.machine.compile_fingerprint import Fingerprint, fingerprint, read_fingerprint

HEAD, FORMAT = "compiler-cache.json", 1
LARGEST_HEAD = 100_000
LOCAL = {"locks", "precompiled_headers"}
"""Folders of files that are of use only where they were made."""
SUFFIX = ".compiled.zip"
OTHER_PATHS = (
    "Kernels for the CPU are compiled again, since Python or PyTorch was installed in a different folder there"
)
DAMAGED = (
    *(zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OverflowError, UnicodeError),
    *(struct.error, zlib.error, lzma.LZMAError),
)
"""What reading a damaged zip raises."""
TRUST = "It contains code that compiling executes: import only files that you trust."


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The exported or imported files."""

    graphs: int
    size: int
    """Bytes of the file."""
    note: str = ""
    """What an import cannot bring along, in a sentence; else empty."""


def export_cache(file: Path) -> Moved:
    """Write the cache folder into one file. Raises ValueError, if it is empty or in use, and NotWritten."""
    folder = cache_folder()
    refuse_in_use(folder, "exported")  # a file that is being written would be cut
    chosen = [path for path in files_in(folder) if _travels(path.relative_to(folder).parts)]
    graphs = graphs_in(folder)
    if not chosen:
        raise ValueError("The compiler cache is empty; train with compile once, then export it")
    head = {"format": FORMAT, "graphs": graphs, "fingerprint": asdict(fingerprint(with_gpus=True))}
    head["installed_in"] = installed_in()
    try:
        with atomic_file(file) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
            archive.writestr(HEAD, json.dumps(head))
            for path in sorted(chosen):
                archive.write(path, path.relative_to(folder).as_posix())
    except OSError as error:
        raise NotWritten(file, error) from error
    return Moved(graphs=graphs, size=file.stat().st_size)


def _travels(parts: tuple[str, ...]) -> bool:
    return parts[0] not in LOCAL and not parts[-1].endswith((".lock", ".tmp", ".gch"))


def import_cache(file: Path) -> Moved:
    """Add a file's contents to the cache folder; all of them, or nothing.

    Raises ValueError in one sentence if the file is damaged, was made for a different kind of machine, or contains
    anything but a compiler cache, and while a training uses the folder.
    """
    folder = cache_folder()
    refuse_in_use(folder, "imported into")
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            head = _checked_head(file, archive)
            members = _checked(file, archive.infolist())
            _check_room(folder, members)
            private_folder(folder)
            with tempfile.TemporaryDirectory(prefix=".import-", dir=folder) as temporary:
                for member in members:
                    _extract(archive, member, Path(temporary))
                _merge(Path(temporary), folder)
    except DAMAGED as error:
        raise ValueError(
            f"'{file}' is not a compiler cache, or is damaged ({error}); copy or export it again"
        ) from error
    except OSError as error:
        doing = "read" if error.filename in (None, str(file)) else "imported"
        raise ValueError(f"'{file}' cannot be {doing}: {why_not_written(error)}") from error
    cpu_code = any(member.filename.endswith(".so") for member in members)
    note = OTHER_PATHS if cpu_code and head.get("installed_in") != installed_in() else ""
    return Moved(graphs=head["graphs"], size=file.stat().st_size, note=note)


def installed_in() -> list[str]:
    """Return the folders of Python's and PyTorch's headers. inductor compares the paths, too, for code of the CPU."""
    torch = find_spec("torch")
    return [sysconfig.get_path("include"), str(Path(torch.origin).parent) if torch and torch.origin else ""]


def _checked_head(file: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return the file's description of itself. Raises ValueError if it is not a compiler cache, or not for this
    machine."""
    try:
        if archive.getinfo(HEAD).file_size > LARGEST_HEAD:
            raise ValueError("too large")
        head = json.loads(archive.read(HEAD))
        if head["format"] != FORMAT or not _is_count(head["graphs"]):
            raise ValueError("another format")
        there = read_fingerprint(head["fingerprint"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"'{file}' was not exported by this version of the program") from None
    _refuse_another_machine(file, there)
    return dict(head)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _refuse_another_machine(file: Path, there: Fingerprint) -> None:
    here = fingerprint(with_gpus=bool(there.gpus) or nvidia.program() is not None)
    if differences := here.differences(there):
        shown = "".join(filter(str.isprintable, "; ".join(differences)))
        raise ValueError(shortened(f"'{file}' was compiled for a different machine: {shown}"))


def _checked(file: Path, members: Iterable[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Return the files to extract. Raises ValueError if one would land where no compiler puts it."""
    chosen = [member for member in members if member.filename != HEAD]
    for member in chosen:
        path = PurePosixPath(member.filename)
        inside = len(path.parts) > 1 and (path.parts[0] in COMPILERS - LOCAL or SHARD.fullmatch(path.parts[0]))
        if (
            not (inside and _is_plain(member.filename))
            or member.is_dir()
            or (member.external_attr >> 16) & 0o170000 not in (0, 0o100000)
        ):
            raise ValueError(
                f"'{file}' contains {_shown(member.filename)}, which is not part of a compiler cache; nothing was "
                "imported"
            )
    if len({member.filename for member in chosen}) != len(chosen):
        raise ValueError(f"'{file}' contains a file twice; nothing was imported")
    return chosen


def _is_plain(name: str) -> bool:
    """Return whether a name leads nowhere else and can be shown in a terminal."""
    # on Windows, a backslash or a colon leads elsewhere, too; a name such as a/../b has parts that are not plain
    parts = name.split("/")
    return name.isprintable() and all(part not in ("", ".", "..") and not set(part) & set("\\:") for part in parts)


def _shown(name: str) -> str:
    return shortened(repr(name))


def _check_room(folder: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    size = sum(member.file_size for member in members)
    free = free_bytes(folder)
    if free is not None and size > free:
        raise ValueError(
            f"The compiler cache takes {format_bytes(size)}, and {format_bytes(free)} are free in '{folder}'"
        )


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Write a file below `folder`; a wrong checksum raises BadZipFile at its end."""
    target = folder / member.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("xb") as written:
        shutil.copyfileobj(source, written)


def _merge(source: Path, folder: Path) -> None:
    """Move the files to their places. Their names are hashes of their contents, so those that exist stay; if a move
    fails, all are taken back."""
    moved: list[Path] = []
    try:
        for path in sorted(each for each in source.rglob("*") if each.is_file()):
            target = folder / path.relative_to(source)
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
            moved.append(target)
    except OSError:
        for target in moved:
            with contextlib.suppress(OSError):
                target.unlink()
        raise
