"""Folders as DreamBooth and LoRA training read them, copied from images that lie anywhere. No Gradio."""

import errno
import filecmp
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.options.folder_names import dotted, numbered
from sd_scripts.options.image_folders import find_images
from sd_scripts.options.words import some

NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
"""What some file system does not take in a folder's name."""
LONGEST_NAME = 200
CAPTIONS = (".txt", ".caption")


@dataclass(frozen=True, kw_only=True)
class Concept:
    """What is to be copied where; texts are as they were typed."""

    instance_prompt: str
    class_prompt: str = ""
    training_images: str
    repeats: int = 40
    regularisation_images: str = ""
    regularisation_repeats: int = 1
    destination: str
    caption_extension: str = ".txt"


@dataclass(kw_only=True)
class Copied:
    """What became of the images of one folder."""

    folder: Path
    images: int = 0
    captions: int = 0
    there: int = 0
    """Images that lay there already, as they are."""
    renamed: list[str] = field(default_factory=list)
    """`a.png as a_2.png`, where another image had the name."""
    failed: list[str] = field(default_factory=list)
    """`a.png (Permission denied)`"""
    remarks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"{self.folder.parent.name}/{self.folder.name}"
        there = f", {self.there} were there already" if self.there else ""
        return f"{where}: {self.images} images and {self.captions} captions copied{there}"

    def told(self) -> list[str]:
        """All that a person may want to look after."""
        named = ((self.renamed, "renamed, since another file has the name"), (self.failed, "could not be copied"))
        return [*(f"{len(files)} {what}: {some(files)}" for files, what in named if files), *self.remarks]


@dataclass(frozen=True, kw_only=True)
class Arranged:
    """The folders of a training."""

    copied: tuple[Copied, ...]
    """Of the images to learn, and of the regularisation images if there are any."""
    options: dict[str, str]
    """What the tab's options become."""


def arrange(concept: Concept) -> Arranged:
    """Copy the images with their captions to `img/40_sks cat` and `reg/1_cat` in the destination, beside them `log`
    and `model`.

    Nothing is moved, deleted or overwritten. Raises ValueError, one sentence, before anything is made.
    """
    destination = place("destination", concept.destination)
    jobs = [("img", "training images", concept.training_images, _folder_name(concept))]
    if concept.regularisation_images.strip():
        name = f"{_repeats(concept.regularisation_repeats)}_{_prompt('class prompt', concept.class_prompt)}"
        jobs.append(("reg", "regularisation images", concept.regularisation_images, name))
    sources = [_source(title, typed, destination) for _, title, typed, _ in jobs]
    folders = [destination / kind / name for kind, _, _, name in jobs]
    try:
        for folder in (*folders, destination / "log", destination / "model"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"destination: '{error.filename}' cannot be made ({error.strerror})") from error
    endings = {*CAPTIONS, dotted(concept.caption_extension.strip() or ".txt")}
    copied = tuple(_copy_all(source, folder, endings) for source, folder in zip(sources, folders, strict=True))
    options = {
        "train_data_dir": destination / "img",
        **({"reg_data_dir": destination / "reg"} if len(jobs) > 1 else {}),
        "output_dir": destination / "model",
        "logging_dir": destination / "log",
    }
    return Arranged(copied=copied, options={name: str(path) for name, path in options.items()})


def _folder_name(concept: Concept) -> str:
    words = [_prompt("instance prompt", concept.instance_prompt)]
    if concept.class_prompt.strip():
        words.append(_prompt("class prompt", concept.class_prompt))
    name = f"{_repeats(concept.repeats)}_{' '.join(words)}"
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError("instance prompt: it becomes a folder's name and is too long for that; shorten it")
    return name


def _prompt(title: str, text: str) -> str:
    text = " ".join(text.split())
    if not text:
        raise ValueError(f"{title}: is empty; write the words that name what is learned, such as sks cat")
    if found := NOT_IN_NAMES.search(text):
        raise ValueError(f"{title}: {found[0]!r} cannot be in a folder's name, which it becomes; leave it out")
    if text.endswith("."):
        raise ValueError(f"{title}: a folder's name, which it becomes, cannot end with a point; leave it out")
    return text


def _repeats(number: Any) -> int:
    if not isinstance(number, int | float) or int(number) != number or not 1 <= number <= 100_000:
        raise ValueError(f"repeats: {number} is not a whole number within 1..100000")
    return int(number)


def place(title: str, typed: str) -> Path:
    if not typed.strip():
        raise ValueError(f"{title}: is empty; name a folder")
    return Path(os.path.expanduser(typed.strip())).absolute()


def _source(title: str, typed: str, destination: Path) -> Path:
    source = place(title, typed)
    if not source.is_dir():
        raise ValueError(f"{title}: there is no folder '{source}'")
    if destination.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"destination: '{destination}' lies within the {title}; choose a folder elsewhere")
    if not find_images(source):
        raise ValueError(f"{title}: no image (png, jpg, webp, bmp) in '{source}'")
    return source


def _copy_all(source: Path, folder: Path, endings: Collection[str]) -> Copied:
    copied = Copied(folder=folder)
    for image in find_images(source):
        captions = [path for ending in sorted(endings) if os.path.isfile(path := image.with_suffix(ending))]
        try:
            _copy(image, captions, copied)
        except OSError as error:
            copied.failed.append(f"{image.name} ({error.strerror or error})")
            if error.errno == errno.ENOSPC:
                copied.remarks.append("the disk is full: make room and copy again; what is there stays")
                break
    if below := sum(path.is_dir() and bool(find_images(path)) for path in source.iterdir()):
        copied.remarks.append(f"{below} folders with images in '{source}' are left out: copy each as its own concept")
    others = [path.name for path in folder.parent.iterdir() if path != folder and path.is_dir()]
    twins = [name for name in others if _words(name) == _words(folder.name)]
    if twins:
        copied.remarks.append(f"{some(twins)} has the same words and is trained too; delete it if it is an older one")
    return copied


def _words(name: str) -> str | None:
    said = numbered(name)
    return said[1] if said else None


def _copy(image: Path, captions: list[Path], copied: Copied) -> None:
    """To the first name where nothing else lies; captions go with their image."""
    stems = (image.stem, *(f"{image.stem}_{number}" for number in range(2, 10_000)))
    for stem in stems:
        target = copied.folder / f"{stem}{image.suffix}"
        beside = {caption: target.with_suffix(caption.suffix) for caption in captions}
        if target.exists():
            if not _same(image, target):
                continue
            copied.there += 1
        elif any(there.exists() and not _same(caption, there) for caption, there in beside.items()):
            continue
        else:
            _copy_file(image, target)
            copied.images += 1
            if stem != image.stem:
                copied.renamed.append(f"{image.name} as {target.name}")
        for caption, there in beside.items():
            if not there.exists():
                _copy_file(caption, there)
                copied.captions += 1
            elif not _same(caption, there):
                copied.remarks.append(f"{there.name} is another text there, and stays")
        return


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _copy_file(source: Path, target: Path) -> None:
    """Whole or not at all."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        shutil.copy2(source, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink()
