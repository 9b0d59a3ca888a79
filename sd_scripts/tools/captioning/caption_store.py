"""Writes caption files whole, and spares those that a person wrote: it remembers which texts came from a model."""

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import saving
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted
from sd_scripts.formats.private import private_folder
from sd_scripts.runs.store import state_folder

LARGEST_CAPTION = 100_000
"""Bytes; a longer text file is not a caption."""


class CaptionStore:
    """The caption files of some images."""

    def __init__(self, images: Iterable[Path], extension: str):
        self._files = caption_files(images, extension)
        self._record = private_folder(state_folder()) / "written-captions.jsonl"
        self._ours = _written(self._record)

    def text(self, image: Path) -> str:
        """Return the caption of an image; empty if it has none. Raises ValueError, one sentence, if it is not text."""
        file = self._files[image]
        try:
            with file.open("rb") as opened:
                content = opened.read(LARGEST_CAPTION + 1)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ValueError(f"'{file}' cannot be read: {error.strerror or error}") from None
        try:
            if len(content) > LARGEST_CAPTION or b"\0" in content:
                raise ValueError
            return content.decode("utf-8-sig").strip()
        except ValueError:
            raise ValueError(f"'{file}' is not a caption in UTF-8; save it as UTF-8") from None

    def is_hand_written(self, image: Path) -> bool:
        """Return whether an image has a caption that no job of ours wrote in this form."""
        text = self.text(image)
        return bool(text) and self._ours.get(str(self._files[image])) != _version(text)

    def write(self, image: Path, text: str) -> None:
        """Write a caption. Raises NotWritten, one sentence, if that fails; the file then is as before."""
        file = self._files[image]
        with saving(file):
            write_whole(file, f"{text}\n")
        self._ours[str(file)] = _version(text)
        with contextlib.suppress(OSError), self._record.open("a", encoding="utf-8") as record:
            record.write(json.dumps([str(file), _version(text)]) + "\n")


def caption_files(images: Iterable[Path], extension: str) -> dict[Path, Path]:
    """Return the caption file of each image as training finds it; of an image that has none, where it will be."""
    by_folder: dict[Path, list[Path]] = {}
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    files = {}
    for folder, within in by_folder.items():
        found = find_captions(folder, within, extension).found
        for image in within:
            file = found.get(image) or image.with_name(image.stem + dotted(extension))
            files[image] = file.resolve() if file.is_symlink() else file
    return files


def _written(record: Path) -> dict[str, str]:
    ours: dict[str, str] = {}
    with contextlib.suppress(OSError), record.open(encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):  # cut off by a full disk
                file, version = json.loads(line)
                ours[file] = version
    return ours


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
