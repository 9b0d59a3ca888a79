"""Where the caption or the mask of an image is: a file, or an entry of a metadata file.

A place is read and written as bytes: the whole text file, or the JSON value in the metadata file. So an undo puts back
exactly the same bytes, and everything around an entry stays as its author wrote it.
"""

import codecs
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sd_scripts.formats.documents import is_utf8, split_lines
from sd_scripts.formats.editing.metadata_text import entry_values, with_values
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted
from sd_scripts.formats.images.metadata_file import Words
from sd_scripts.formats.regular_files import open_regular

LARGEST_CAPTION = 100_000
"""Bytes of a caption file that can be edited; the longest text encoder reads 2,000."""
LARGEST_METADATA = 512 * 2**20
LARGEST_MASK = 64 * 2**20
MISSING = "-"
"""Version of a caption that does not exist."""
Content = Words | Literal["mask"]


@dataclass(frozen=True)
class Place:
    """A caption file, the value of an entry of a metadata file, or a mask."""

    file: Path
    key: str | None = None
    """Of the entry; None for a file of its own."""
    words: Content = "caption"

    @property
    def name(self) -> str:
        return self.file.name if self.key is None else f"{self.key} in {self.file.name}"

    @property
    def noun(self) -> str:
        return "mask" if self.words == "mask" else "caption"

    @property
    def entry(self) -> tuple[str, Words]:
        """The entry of a metadata file, and which of its words."""
        assert self.key is not None
        assert self.words != "mask"
        return self.key, self.words

    @property
    def largest(self) -> int:
        """Bytes that the file has at most."""
        if self.words == "mask":
            return LARGEST_MASK
        return LARGEST_CAPTION if self.key is None else LARGEST_METADATA


def version_of(content: bytes | None) -> str:
    """Return a text that differs for different contents, by which an outside change is noticed."""
    return MISSING if content is None else hashlib.sha256(content).hexdigest()[:20]


def read_places(places: Iterable[Place]) -> dict[Place, bytes | None]:
    """Return the content of each place; None if there is no such file or entry.

    Raises ValueError, one sentence, for a file that cannot be read.
    """
    contents: dict[Place, bytes | None] = {}
    by_file: dict[Path, list[Place]] = {}
    for place in places:
        by_file.setdefault(place.file, []).append(place)
    for file, within in by_file.items():
        whole = read_bytes(file, within[0].largest, within[0].noun)
        contents |= {place: whole for place in within if place.key is None}
        if entries := [place for place in within if place.key is not None]:
            if whole is None:
                raise ValueError(f"file not found: '{file}'")
            values = entry_values(whole, file)
            contents |= {place: values.get(place.entry) for place in entries}
    return contents


def read_bytes(file: Path, most: int, noun: str = "caption") -> bytes | None:
    """Return the content of a regular file, None if it does not exist. Raises ValueError, one sentence."""
    try:
        with open_regular(file) as stream:
            content = stream.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"'{file}' cannot be read: {error.strerror or error}") from None
    if len(content) > most:
        raise ValueError(f"'{file}' is larger than {most:,} bytes, so it is probably not a {noun}")
    return content


def files_with(contents: Mapping[Place, bytes | None]) -> Iterator[tuple[Path, bytes | None]]:
    """Yield each file with the content that it has once these are written; None for a file to be removed."""
    by_file: dict[Path, dict[Place, bytes | None]] = {}
    for place, content in contents.items():
        by_file.setdefault(place.file, {})[place] = content
    for file, within in by_file.items():
        first = next(iter(within))
        if first.key is None:
            yield file, within[first]
            continue
        whole = read_bytes(file, LARGEST_METADATA)
        if whole is None:
            raise ValueError(f"file not found: '{file}'")
        yield file, with_values(whole, file, {p.entry: value for p, value in within.items()})


def text_of(place: Place, content: bytes | None) -> str:
    """Return a caption as people edit it: lines joined by line feeds, without the line end after the last.

    Raises ValueError, one sentence, if it is not UTF-8 text.
    """
    if content is None:
        return ""
    if place.words == "mask":
        return f"{len(content):,} bytes"
    if place.key is not None:
        value = json.loads(content)
        return "\n".join(value if isinstance(value, list) else [value or ""])
    try:
        if b"\0" in content:  # UTF-16 without a byte order mark has many
            raise ValueError
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except ValueError:
        raise ValueError(f"'{place.file}' is not UTF-8 text; save it as UTF-8") from None
    lines = split_lines(text)
    return "\n".join(lines[:-1] if len(lines) > 1 and not lines[-1] else lines)


def content_of(place: Place, text: str, before: bytes | None) -> bytes:
    """Return a caption as its place stores it: with the byte order mark, line ends and list that `before` had.

    Raises ValueError, one sentence, for a text that no caption file can have.
    """
    if "\0" in text or not is_utf8(text):
        raise ValueError(f"{place.name}: contains characters that are not valid in a caption; type it again")
    lines = split_lines(text)
    if place.key is not None:
        is_list = before is not None and before.startswith(b"[")
        return json.dumps(lines if is_list else "\n".join(lines), ensure_ascii=False).encode()
    before = before or b""
    line_end = "\r\n" if b"\r\n" in before else "\n"
    last = line_end if before.endswith((b"\n", b"\r")) else ""
    content = (line_end.join(lines) + last).encode()
    if len(content) > LARGEST_CAPTION:
        raise ValueError(f"{place.name}: a caption has at most {LARGEST_CAPTION:,} bytes; shorten it")
    return (codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b"") + content


def caption_places(images: Sequence[Path], extension: str) -> dict[Path, Place]:
    """Return the caption file of each image as training finds it; of an image that has none, the file that would be
    found. A link is followed, so that it stays one."""
    places: dict[Path, Place] = {}
    by_folder: dict[Path, list[Path]] = {}
    for image in images:
        by_folder.setdefault(image.parent, []).append(image)
    for folder, within in by_folder.items():
        found = find_captions(folder, within, extension).found
        for image in within:
            file = found.get(image) or image.with_name(image.stem + dotted(extension))
            places[image] = Place(Path(os.path.realpath(file)) if file.is_symlink() else file)
    return places
