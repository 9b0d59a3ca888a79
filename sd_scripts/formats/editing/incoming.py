"""Files that a browser sends for a dataset: checked and collected in a hidden folder, and moved in all together."""

import contextlib
import filecmp
import os
import re
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from sd_scripts.formats.disk import format_bytes, free_bytes
from sd_scripts.formats.documents import name_problem
from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.editing.moving import TRASH
from sd_scripts.formats.images.caption_files import ANY_IMAGES, CAPTION_ENDINGS
from sd_scripts.formats.images.folder_names import MASKS, dotted, numbered
from sd_scripts.formats.images.image_files import TRAINED, open_image
from sd_scripts.formats.images.image_folders import has_suffix, is_readable
from sd_scripts.formats.words import some

LARGEST_FILE = 512 * 2**20
LARGEST_ARCHIVE = 8 * 2**30
LARGEST_CONTENTS = 20 * 2**30
"""Bytes of all files in an archive."""
MOST_FILES = 50_000
MOST_RATIO = 200
"""Images and captions are never compressed to less than a 200th; an archive that is was made to fill the disk."""
SPARE_BYTES = 512 * 2**20
"""Disk space that is left for others."""
DEEPEST = 4
SCRIPTABLE = frozenset({".svg"})
"""Images that can contain programs."""
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
BATCH = re.compile(r"[0-9a-f]{16}")
STALE_SECONDS = 24 * 3600
CHUNK = 1 << 20


@dataclass(kw_only=True)
class Received:
    """What became of the files that were sent."""

    moves: list[Move] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Names of files that are neither images nor captions, with the reason."""
    present: list[str] = field(default_factory=list)
    """Names of files that the folder has already, with the same content."""
    renamed: list[str] = field(default_factory=list)
    """New names of files whose name was taken by a different file."""

    @property
    def images(self) -> int:
        return sum(has_suffix(move.target.name, ANY_IMAGES) for move in self.moves)


class Incoming:
    """The files of one upload, in a hidden folder within the folder that they are for: on the same disk."""

    def __init__(self, folder: Path, batch: str, caption_extension: str = ".txt"):
        if not BATCH.fullmatch(batch):
            raise ValueError("upload: the number of the upload is not valid; try again")
        self._folder = folder
        self._place = folder / TRASH / f".upload-{batch}"
        self._suffixes = ANY_IMAGES - SCRIPTABLE
        self._captions = {*CAPTION_ENDINGS, dotted(caption_extension).lower()}

    @staticmethod
    def new_batch() -> str:
        return secrets.token_hex(8)

    @contextlib.contextmanager
    def file(self, name: str, size: int) -> Iterator["Sink"]:
        """Yield where the content of a file goes; it counts once the block ends. Raises ValueError, one sentence, for a
        name or size that is not accepted."""
        path = self._place / self.checked(name)
        most = LARGEST_ARCHIVE if path.suffix.lower() == ".zip" else LARGEST_FILE
        self._require_room(size)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as stream:
                yield Sink(stream, most, name)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def checked(self, name: str) -> PurePosixPath:
        """Return a name that was sent as a path below the folder. Raises ValueError, one sentence, for one that leads
        out of it, or is not an image, a caption or an archive."""
        if problem := self.problem_of(name):
            raise ValueError(f"{_shown(name)}: {problem}")
        return PurePosixPath(name)

    def problem_of(self, name: str, *, archives: bool = True) -> str:
        parts = name.split("/")
        if problem := name_problem(name):
            return problem
        if "\\" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
            return "the name leads out of the folder"
        if len(parts) > DEEPEST:
            return f"is more than {DEEPEST - 1} folders deep"
        if any(part.startswith(".") or part == "__MACOSX" for part in parts):
            return "is a hidden file"
        if MASKS in parts[:-1]:
            return f"is a mask; put it into the folder {MASKS!r} next to the folder of the images"
        if any(RESERVED.fullmatch(part) or part != part.rstrip(". ") for part in parts):
            return "Windows cannot have a file of this name; rename it"
        suffix = PurePosixPath(name).suffix.lower()
        if suffix in SCRIPTABLE:
            return "SVG files can contain programs and are not accepted; convert it to PNG"
        if suffix not in self._suffixes | self._captions | ({".zip"} if archives else set()):
            return "is neither an image nor a caption"
        return ""

    def finish(self) -> Received:
        """Unpack archives, and return the moves of all files into the folder. Raises ValueError, one sentence."""
        received = Received()
        for archive in sorted(self._place.rglob("*.zip")):
            self._unpack(archive, received)
            archive.unlink()
        files = [path for path in sorted(self._place.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        for _, together in _by_stem(files):
            self._place_together(together, received)
        return received

    def discard(self) -> None:
        """Remove what was sent and not moved."""
        shutil.rmtree(self._place, ignore_errors=True)
        with contextlib.suppress(OSError):  # it has other things
            self._place.parent.rmdir()

    def _place_together(self, files: list[Path], received: Received) -> None:
        """Add the moves of the files of one name: they stay together if the name is taken."""
        usable = [file for file in files if not self._is_broken(file, received)]
        targets = {file: self._home(file) for file in usable}
        new = {file: target for file, target in targets.items() if not _same(file, target)}
        received.present += [file.name for file in targets if file not in new]
        number = 1
        chosen = new
        taken = {move.target for move in received.moves}
        while any(target in taken or os.path.lexists(target) for target in chosen.values()):
            number += 1
            chosen = {file: _numbered(target, number) for file, target in new.items()}
        if number > 1:
            received.renamed += [target.name for target in chosen.values()]
        received.moves += [Move(source=file, target=target) for file, target in chosen.items()]

    def _home(self, file: Path) -> Path:
        """Return where a file goes: into the folder, where training reads it, whatever folders it came in; a folder
        like 10_cat stays one of its own, unless the folder is one itself."""
        sent = file.relative_to(self._place)
        concepts = [place for place, name in enumerate(sent.parent.parts) if numbered(name)]
        if concepts and not numbered(self._folder.name):
            return self._folder.joinpath(*sent.parts[concepts[0] : concepts[0] + 1], sent.name)
        return self._folder / sent.name

    def _is_broken(self, file: Path, received: Received) -> bool:
        if not is_readable(file):
            return False  # a caption, or an image that is to be converted
        try:
            with open_image(file, TRAINED):
                return False
        except Exception:  # whatever Pillow raises for a broken file
            received.skipped.append(f"{file.name}: is not an image, or is cut off")
            return True

    def _unpack(self, archive: Path, received: Received) -> None:
        try:
            with zipfile.ZipFile(archive) as opened:
                self._unpack_each(opened, archive, received)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise ValueError(f"{archive.name}: is not a complete zip archive ({error})") from None

    def _unpack_each(self, opened: zipfile.ZipFile, archive: Path, received: Received) -> None:
        entries = [entry for entry in opened.infolist() if not entry.is_dir()]
        if len(entries) > MOST_FILES:
            raise ValueError(f"{archive.name}: has {len(entries):,} files; the maximum is {MOST_FILES:,}")
        total = sum(entry.file_size for entry in entries)
        packed = max(archive.stat().st_size, 1)
        if total > LARGEST_CONTENTS or total > packed * MOST_RATIO:
            raise ValueError(f"{archive.name}: would unpack to {format_bytes(total)}, which is not a set of images")
        self._require_room(total)
        base = archive.parent.relative_to(self._place)
        room = min(total + CHUNK, packed * MOST_RATIO + CHUNK, LARGEST_CONTENTS)
        for entry in entries:
            problem = self.problem_of(entry.filename, archives=False)
            if not problem and stat.S_ISLNK(entry.external_attr >> 16):
                problem = "is a link"
            if not problem and entry.flag_bits & 1:
                problem = "is encrypted; remove the password"
            if not problem and entry.file_size > LARGEST_FILE:
                problem = f"is larger than {format_bytes(LARGEST_FILE)}"
            target = self._place / base / entry.filename
            if not problem and os.path.lexists(target):
                problem = "occurs twice"
            if problem:
                if problem != "is a hidden file":
                    received.skipped.append(f"{_shown(entry.filename)}: {problem}")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(entry) as source, target.open("xb") as stream:
                room -= _copied(source, stream, min(room, LARGEST_FILE), archive.name)

    def _require_room(self, size: int) -> None:
        free = free_bytes(self._folder)
        if free is not None and size + SPARE_BYTES > free:
            raise ValueError(
                f"upload: needs {format_bytes(size)}, but the disk has {format_bytes(free)} left; free some space"
            )


class Sink:
    """Takes the parts of a file, up to a limit."""

    def __init__(self, stream: IO[bytes], most: int, name: str):
        self._stream = stream
        self._most = most
        self._name = name

    def write(self, part: bytes) -> None:
        self._most -= len(part)
        if self._most < 0:
            raise ValueError(f"{_shown(self._name)}: is too large; the maximum is {format_bytes(LARGEST_FILE)}")
        self._stream.write(part)


def remove_stale_uploads(folder: Path) -> None:
    """Remove uploads that were cut off at least a day ago."""
    trash = folder / TRASH
    for place in trash.glob(".upload-*") if trash.is_dir() else ():
        if time.time() - place.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(place, ignore_errors=True)


def _copied(source: IO[bytes], target: IO[bytes], most: int, name: str) -> int:
    """Return the bytes copied, counted since the sizes in an archive need not be true."""
    copied = 0
    while part := source.read(CHUNK):
        copied += len(part)
        if copied > most:
            raise ValueError(f"{name}: unpacks to more than it declares; it is damaged, or made to fill the disk")
        target.write(part)
    return copied


def _by_stem(files: Iterable[Path]) -> Iterator[tuple[Path, list[Path]]]:
    groups: dict[Path, list[Path]] = {}
    for file in files:
        groups.setdefault(file.with_suffix(""), []).append(file)
    yield from groups.items()


def _numbered(target: Path, number: int) -> Path:
    return target.with_name(f"{target.stem} ({number}){target.suffix}")


def _same(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:  # there is no such file yet
        return False


def _shown(name: str) -> str:
    return some([name.encode(errors="replace").decode()[-80:]])
