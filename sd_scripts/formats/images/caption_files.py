"""Finds the caption file of each image, for training and for the page."""

import codecs
import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.documents import filled_lines
from sd_scripts.formats.images.folder_names import ByName, dotted, normalized
from sd_scripts.formats.images.image_folders import IMAGE_SUFFIXES, UNREAD_IMAGES, files_in, has_suffix
from sd_scripts.formats.words import counted, some

CAPTION_ENDINGS = (".txt", ".caption", ".cap", ".tags", ".text")
"""Extensions that caption files usually have."""
ANY_IMAGES = IMAGE_SUFFIXES | UNREAD_IMAGES | CLIP_SUFFIXES
MOST_NAMES = 10
"""Unreadable caption files that a message names."""


@dataclass(frozen=True, kw_only=True)
class CaptionFiles:
    """The caption files next to the images of one folder."""

    folder: Path
    extension: str
    found: dict[Path, Path]
    """Caption file of each image that has one."""
    missing: tuple[Path, ...]
    """Images without a caption file."""
    other: str | None
    """An extension with which most of the missing images do have a text file."""
    orphans: tuple[str, ...] = ()
    """Names of caption files that belong to no image, not even to one that is not read."""

    def problem(self, class_tokens: str | None = None, *, is_reg: bool = False) -> str | None:
        """Describe the missing captions, replaced by `class_tokens`, in one sentence; None if all is well.

        Regularisation images usually have no caption but their class.
        """
        if not self.missing or (is_reg and class_tokens and not self.found and not self.other):
            return None
        total = len(self.found) + len(self.missing)
        has = "has" if len(self.missing) == 1 else "have"
        where = repr(self.folder.absolute().name)
        lacking = f"{len(self.missing)} of {counted(total, 'image')} in {where} {has} no {self.extension} file"
        if self.other:
            return f'{lacking}; found files that end in {self.other}: set caption_extension = "{self.other}"'
        verb = "gets" if len(self.missing) == 1 else "get"
        names = f": {some([path.name for path in self.missing])}" if self.found else ""
        if not class_tokens:
            return f"{lacking} and no caption{names}"
        return f"{lacking} and {verb} the caption {class_tokens!r}{names}"

    def orphan_problem(self) -> str | None:
        """Describe the caption files without an image in one sentence; None if there are none."""
        if not self.orphans:
            return None
        count = counted(len(self.orphans), f"{self.extension} file")
        verb = "has" if len(self.orphans) == 1 else "have"
        return f"{count} in {self.folder.absolute().name!r} {verb} no image: {some(self.orphans)}"


def find_captions(
    folder: Path, images: Sequence[Path], extension: str, files: Mapping[str, Path] | None = None
) -> CaptionFiles:
    """Return the caption file of each image of a folder; neither the case of the extension nor the Unicode
    normalization of the names matters.

    `face_120_80_60_60.png` may share the caption file `face.txt`. `files` are the files_in the folder, if they are
    known.
    """
    files = files_in(folder) if files is None else files
    ending = dotted(extension)
    by_stem = _by_stem(files, ending)
    lookup = ByName(by_stem)
    found: dict[Path, Path] = {}
    missing = []
    for image in images:
        if (name := lookup.first(_stems(image.name))) is None:
            missing.append(image)
        else:
            found[image] = files[name]
    return CaptionFiles(
        folder=folder,
        extension=ending,
        found=found,
        missing=tuple(missing),
        other=_other_ending(files, missing),
        orphans=_orphans(files, {*by_stem.values()} - {file.name for file in found.values()}),
    )


class UnreadableCaptions(ValueError):
    """Raised for caption files that cannot be read; the message has the problem of the first and names the others."""

    def __init__(self, problems: Mapping[Path, str]):
        first, *others = problems.values()
        names = [path.name for path in problems][1:]
        more = f". {len(others)} more cannot be read: {some(names, MOST_NAMES)}" if others else ""
        super().__init__(f"caption_extension: {first}{more}")
        self.problems = problems


def read_captions(files: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the lines of each caption file that are not empty. Raises UnreadableCaptions, which names all files that
    cannot be read."""
    captions, problems = {}, {}
    for file in files:
        try:
            captions[file] = filled_lines(_read_caption(file))
        except ValueError as error:
            problems[file] = str(error)
    if problems:
        raise UnreadableCaptions(problems)
    return captions


def _read_caption(file: Path) -> str:
    try:
        with file.open("rb", buffering=0) as stream:
            content = stream.read()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    if b"\0" not in content:  # UTF-16 without a byte order mark has many
        with contextlib.suppress(UnicodeDecodeError):
            return content.removeprefix(codecs.BOM_UTF8).decode()
    raise ValueError(f"{file} is not UTF-8 text; save it as UTF-8")


def _by_stem(names: Iterable[str], ending: str) -> dict[str, str]:
    """Return the file names with this extension by stem, preferring the same case."""
    files: dict[str, str] = {}
    lower = ending.lower()
    for name in names:
        if name.lower().endswith(lower):
            stem = name[: len(name) - len(ending)]
            kept = files.setdefault(stem, name)
            if kept is not name and (name.endswith(ending), name) > (kept.endswith(ending), kept):
                files[stem] = name
    return files


def _stems(image: str) -> list[str]:
    stem = os.path.splitext(image)[0]
    return [stem, stem.rsplit("_", 4)[0]] if stem.count("_") >= 4 else [stem]


def _orphans(names: Iterable[str], unused: set[str]) -> tuple[str, ...]:
    """Return the unused caption files, except where the image is there but not read."""
    if not unused:
        return ()
    images = {normalized(os.path.splitext(name)[0]) for name in names if has_suffix(name, ANY_IMAGES)}
    return tuple(sorted(file for file in unused if normalized(os.path.splitext(file)[0]) not in images))


def _other_ending(names: Iterable[str], missing: Sequence[Path]) -> str | None:
    """Return the most common extension of text files next to the images without captions."""
    endings: Counter[str] = Counter()
    for ending in CAPTION_ENDINGS if missing else ():
        if not (files := _by_stem(names, ending)):
            continue
        lookup = ByName(files)
        count = sum(lookup.first(_stems(image.name)) is not None for image in missing)
        endings.update({ending: count} if count else {})
    return endings.most_common(1)[0][0] if endings else None
