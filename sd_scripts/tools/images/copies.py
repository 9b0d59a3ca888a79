"""The folder of copies that a job makes: gathered under a hidden name, and renamed when all is there.

A stopped or killed job leaves the hidden folder, in which the same job continues. Next to each copy are its captions;
masks that come along are in the folder `masks`, in a folder for each folder of images, as conditioning_data_dir reads
them.
"""

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sd_scripts.data.sources.images import Pixels, UnreadableImage
from sd_scripts.formats.atomic_files import PART, atomic_file, write_whole
from sd_scripts.formats.disk import NotWritten, why_not_written
from sd_scripts.formats.images.folder_names import MASKS
from sd_scripts.options.images.tools import CopyOptions
from sd_scripts.runs import process
from sd_scripts.runs.folder import read_json
from sd_scripts.tools.images.pieces import NoCopy, colours

JOB, DONE = "job.json", "done.jsonl"
"""Files of the hidden folder, removed before it is renamed."""
SUFFIXES = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
LONGEST_WEBP = 16383
OPTIMAL = 4
"""Compression of PNG: a level at which files are hardly larger, and written three times as fast as with 9."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one image."""

    image: str
    results: tuple[str, ...] = ()
    """Paths of its copies below the output folder; none: it was left out."""
    before: str = ""
    """Its size and format."""
    after: str = ""
    note: str = ""
    is_changed: bool = True


@dataclass(kw_only=True)
class CopyNames:
    """Chooses the names of copies: each image keeps its stem, by which its captions and masks are found."""

    root: Path
    _taken: dict[tuple[Path, str], Path] = field(default_factory=dict)

    @classmethod
    def of(cls, images: Iterable[Path], root: Path) -> "CopyNames":
        names = cls(root=root)
        for image in images:
            names._taken.setdefault((image.parent, image.stem.lower()), image)
        return names

    def of_image(self, image: Path, number: int | None = None) -> Path:
        """Return the path of an image's copy below the output folder, without extension."""
        stem = image.stem
        if self._taken.get((image.parent, stem.lower()), image) != image:  # cat.jpg next to cat.heic
            stem = f"{stem}_{image.suffix[1:].lower()}"
        if number is not None:
            stem = f"{stem}_{number}"
            while (image.parent, stem.lower()) in self._taken:
                stem = f"{stem}_"
        return image.parent.relative_to(self.root) / stem


class Copies:
    """The copies of a job. Methods that write may be called by several threads."""

    def __init__(self, output: Path, key: str, options: CopyOptions) -> None:
        """Begin, or continue the job with this key. Raises ValueError, one sentence."""
        self.output = output
        self._options = options
        self._folder = output.with_name(f".{output.name}.unfinished")
        self._lock = threading.Lock()
        if output.is_file() or (output.is_dir() and any(output.iterdir())):
            raise ValueError(f"output_dir: '{output}' exists; choose a folder that does not exist yet")
        self.rows: dict[str, Row] = {}
        job = read_json(self._folder / JOB) if self._folder.is_dir() else None
        known = job if isinstance(job, dict) else {}
        owner = str(known.get("owner") or "")
        if owner and owner != process.process_key() and process.is_alive(owner):
            raise ValueError(
                f"output_dir: a different job is writing '{output}'; wait for it, or choose another folder"
            )
        try:
            if known.get("key") == key:
                self.rows = _read_rows(self._folder / DONE)
                for part in self._folder.rglob(f".*.{PART}"):  # of a killed job
                    part.unlink()
            else:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / JOB, json.dumps({"key": key, "owner": process.process_key()}))
        except OSError as error:
            raise ValueError(f"output_dir: '{output}' cannot be written ({why_not_written(error)})") from error

    def copy_file(self, source: Path, target: Path) -> str:
        """Copy a file as it is; return its path below the output folder. Raises UnreadableImage and NotWritten."""
        try:
            content = source.read_bytes()
        except OSError as error:
            raise UnreadableImage(source, error) from error
        with self._writing(target) as part:
            part.write_bytes(content)
        return target.as_posix()

    def write_image(self, target: Path, pixels: Pixels) -> str:
        """Write an image (H, W, 3 or 4) without any metadata; return its path below the output folder."""
        options = self._options
        target = target.with_name(target.name + SUFFIXES[options.image_format])
        if options.image_format == "jpeg" and pixels.shape[2] == 4:
            pixels = colours(pixels)
        if options.image_format == "webp" and max(pixels.shape[:2]) > LONGEST_WEBP:
            raise NoCopy(f"{target.name} has {size_text(pixels)} pixels, and WebP at most {LONGEST_WEBP} a side")
        image = Image.fromarray(pixels)
        how: dict[str, Any] = {"compress_level": OPTIMAL}
        if options.image_format == "jpeg":
            how = {"quality": options.quality, "subsampling": 0}
        elif options.image_format == "webp":
            how = {"quality": options.quality, "lossless": options.quality == 100}
        with self._writing(target) as part:
            image.save(part, format=options.image_format, **how)
        return target.as_posix()

    def write_mask(self, stem: Path, mask: Pixels) -> str:
        """Write a mask (H, W); `stem` is its path below the output folder without extension. Return that path."""
        target = stem.with_name(f"{stem.name}.png")
        with self._writing(target) as part:
            Image.fromarray(np.ascontiguousarray(mask)).save(part, format="png", compress_level=OPTIMAL)
        return target.as_posix()

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of an image that has no copy after all, which are named by their paths below the folder."""
        for path in paths:
            (self._folder / path).unlink(missing_ok=True)

    @property
    def has_masks(self) -> bool:
        """Whether masks came along."""
        return (self._folder / MASKS).is_dir()

    @contextlib.contextmanager
    def _writing(self, target: Path) -> Iterator[Path]:
        """Yield the path to write a file to, which gets its name when it is whole. Raises NotWritten and NoCopy."""
        file = self._folder / target
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as part:
                yield part
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise NoCopy(f"the name of {target.name[:40]}… is too long for a copy; shorten it") from error
            raise NotWritten(self.output, error) from error

    def add(self, row: Row) -> None:
        """Note that an image is done, after all its files are written."""
        line = json.dumps(asdict(row), ensure_ascii=True) + "\n"
        with self._lock:
            self.rows[row.image] = row
            try:
                with (self._folder / DONE).open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                raise NotWritten(self.output, error) from error

    def finish(self) -> None:
        """Give the folder its name; without any copy, remove it. Raises OSError."""
        for name in (JOB, DONE):
            (self._folder / name).unlink(missing_ok=True)
        if not any(row.results for row in self.rows.values()):
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if self.output.is_dir():
            self.output.rmdir()  # it was empty, or this raises
        os.replace(self._folder, self.output)


def _read_rows(file: Path) -> dict[str, Row]:
    """Return the images that are done; a line that a kill cut off is done again."""
    rows = {}
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                values = json.loads(line)
                row = Row(**{**values, "results": tuple(values["results"])})
                rows[row.image] = row
    return rows


def size_text(pixels: Pixels) -> str:
    """Return the size of an image (H, W, ...), such as 640x480."""
    return f"{pixels.shape[1]}x{pixels.shape[0]}"
