"""Finds the caption file of each image, for training and for the page."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.formats.documents import read_text, split_lines
from sd_scripts.formats.folder_names import ByName, dotted, normalized
from sd_scripts.formats.image_folders import IMAGE_SUFFIXES, UNREAD_IMAGES
from sd_scripts.formats.words import counted, some

CAPTION_ENDINGS = (".txt", ".caption", ".cap", ".tags", ".text")
"""Extensions that caption files usually have."""
ANY_IMAGES = IMAGE_SUFFIXES | UNREAD_IMAGES
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
    """Another extension, with which most of the missing images do have a text file."""
    orphans: tuple[str, ...] = ()
    """Names of caption files that belong to no image, not even to one that is not read."""

    def problem(self, class_tokens: str | None = None, *, is_reg: bool = False) -> str | None:
        """Describe the missing captions, replaced by `class_tokens`, in one sentence; None if there is nothing to say.

        Regularisation images usually have no caption but their class.
        """
        if not self.missing or (is_reg and class_tokens and not self.found and not self.other):
            return None
        total = len(self.found) + len(self.missing)
        lacking = f"{len(self.missing)} of {total} image{'s' * (total != 1)} in {self.folder.absolute().name!r}"
        lacking += f" {'has' if len(self.missing) == 1 else 'have'} no {self.extension} file"
        if self.other:
            return f'{lacking}; found {self.other} files instead: set caption_extension = "{self.other}"'
        instead = f"with the caption {class_tokens!r}" if class_tokens else "without a caption"
        names = f": {some([path.name for path in self.missing])}" if self.found else ""
        return f"{lacking} and {'is' if len(self.missing) == 1 else 'are'} trained {instead}{names}"

    def orphan_problem(self) -> str | None:
        """Describe the caption files without an image in one sentence; None if there are none."""
        if not self.orphans:
            return None
        count = counted(len(self.orphans), f"{self.extension} file")
        verb = "has" if len(self.orphans) == 1 else "have"
        return f"{count} in {self.folder.absolute().name!r} {verb} no image: {some(self.orphans)}"


def find_captions(folder: Path, images: Sequence[Path], extension: str) -> CaptionFiles:
    """Return the caption file of each image of a folder; neither the case of the extension nor the Unicode
    normalization of the names matters.

    `face_120_80_60_60.png` may share the caption file `face.txt`.
    """
    names = os.listdir(folder)
    ending = dotted(extension)
    files = _by_stem(names, ending)
    lookup = ByName(files)
    captions = {image: file for image in images if (file := lookup.first(_stems(image))) is not None}
    missing = tuple(image for image in images if image not in captions)
    return CaptionFiles(
        folder=folder,
        extension=ending,
        found={image: folder / file for image, file in captions.items()},
        missing=missing,
        other=_other_ending(names, missing),
        orphans=_orphans(names, {*files.values()} - {*captions.values()}),
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
            captions[file] = [line.strip() for line in split_lines(_read_caption(file)) if line.strip()]
        except ValueError as error:
            problems[file] = str(error).replace(f"'{file}'", str(file))
    if problems:
        raise UnreadableCaptions(problems)
    return captions


def _read_caption(file: Path) -> str:
    text = read_text(file)
    if "\0" in text:  # UTF-16 without a byte order mark
        raise ValueError(f"'{file}' is not UTF-8 text; save it as UTF-8")
    return text


def _by_stem(names: Iterable[str], ending: str) -> dict[str, str]:
    """Return the file names with this extension by stem, preferring those of the same case."""
    alike = [name for name in names if name.lower().endswith(ending.lower())]
    exact_last = sorted(alike, key=lambda name: (name.endswith(ending), name))
    return {name[: len(name) - len(ending)]: name for name in exact_last}


def _stems(image: Path) -> list[str]:
    fields = image.stem.split("_")
    return [image.stem, "_".join(fields[:-4])] if len(fields) >= 5 else [image.stem]


def _orphans(names: Iterable[str], unused: set[str]) -> tuple[str, ...]:
    """Return the unused caption files without those of images that are there and not read."""
    if not unused:
        return ()
    images = {normalized(stem) for stem, ending in map(os.path.splitext, names) if ending.lower() in ANY_IMAGES}
    return tuple(sorted(file for file in unused if normalized(os.path.splitext(file)[0]) not in images))


def _other_ending(names: Sequence[str], missing: Sequence[Path]) -> str | None:
    """Return the most common extension of text files next to the images without captions."""
    endings: Counter[str] = Counter()
    for ending in CAPTION_ENDINGS if missing else ():
        lookup = ByName(_by_stem(names, ending))
        count = sum(lookup.first(_stems(image)) is not None for image in missing)
        endings.update({ending: count} if count else {})
    return endings.most_common(1)[0][0] if endings else None
