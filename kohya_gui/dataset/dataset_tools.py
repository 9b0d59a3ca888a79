"""Copy images into the folder layout that DreamBooth and LoRA training read. No Gradio."""

import errno
import filecmp
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted, numbered
from sd_scripts.formats.images.image_folders import each_image, find_images
from sd_scripts.formats.words import some

NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
"""Characters that some file system does not allow in a folder name."""
LONGEST_NAME = 200
CAPTIONS = (".txt", ".caption")


def shown_field(label: str, info: str | None = None, value: bool | int | str = "", **face: bool | str) -> Any:
    """Return a dataclass field that the page shows: a switch, a number or a text, by the type of its value.

    `face` may have a `placeholder`, and be `wide` or a `folder`, which gets a link to the folder dialog.
    """
    return field(default=value, metadata={"label": label, "info": info, "value": value, **face})


@dataclass(frozen=True, kw_only=True)
class Concept:
    """What to copy and where; texts as typed."""

    instance_prompt: str = shown_field("Instance prompt", "A rare word that stands for the concept.", placeholder="sks")
    class_prompt: str = shown_field("Class prompt", "What kind of thing the concept is.", placeholder="cat")
    training_images: str = shown_field("Training images", "Folder of the images to train on.", folder=True)
    repeats: int = shown_field("Repeats", "How often each image is seen per epoch.", 40)
    regularisation_images: str = shown_field(
        "Regularisation images", "Optional: folder of other images of the class.", folder=True
    )
    regularisation_repeats: int = shown_field("Regularisation repeats", value=1)
    destination: str = shown_field(
        "Destination", "Folder in which img, reg, log and model are created.", folder=True, wide=True
    )
    caption_extension: str = ".txt"


@dataclass(kw_only=True)
class Copied:
    """The result of copying one folder of images."""

    folder: Path
    images: int = 0
    captions: int = 0
    unchanged: int = 0
    """Images that were there already."""
    renamed: list[str] = field(default_factory=list)
    """`a.png as a_2.png`, where a different image had the name."""
    failed: list[str] = field(default_factory=list)
    """`a.png (Permission denied)`"""
    remarks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"{self.folder.parent.name}/{self.folder.name}"
        unchanged = f", {self.unchanged} already there" if self.unchanged else ""
        return f"{where}: {self.images} images and {self.captions} captions copied{unchanged}"

    def warnings(self) -> list[str]:
        """Return everything the user may want to check."""
        listed = ((self.renamed, "renamed because the name was taken"), (self.failed, "could not be copied"))
        return [*(f"{len(files)} {what}: {some(files)}" for files, what in listed if files), *self.remarks]


@dataclass(frozen=True, kw_only=True)
class Arranged:
    """The folders created for a training."""

    copied: tuple[Copied, ...]
    """Results for the training images and, if any, the regularisation images."""
    options: dict[str, str]
    """The tab's options that point to these folders."""


def arrange(concept: Concept) -> Arranged:
    """Copy images with captions to `img/40_sks cat` and `reg/1_cat` in the destination; create `log` and `model`.

    Nothing is moved, deleted or overwritten. Raises ValueError, one sentence, before anything is created.
    """
    destination = typed_folder("destination", concept.destination)
    jobs = [("img", "training_images", concept.training_images, _folder_name(concept))]
    if concept.regularisation_images.strip():
        name = f"{_repeats(concept.regularisation_repeats)}_{_prompt('class_prompt', concept.class_prompt)}"
        jobs.append(("reg", "regularisation_images", concept.regularisation_images, name))
    sources = [_source(name, typed, destination) for _, name, typed, _ in jobs]
    folders = [destination / kind / name for kind, _, _, name in jobs]
    try:
        for folder in (*folders, destination / "log", destination / "model"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"destination: '{error.filename}' cannot be created ({error.strerror})") from error
    endings = {*CAPTIONS, dotted(concept.caption_extension.strip() or ".txt")}
    copied = tuple(_copy_all(source, folder, endings) for source, folder in zip(sources, folders, strict=True))
    options = {"train_data_dir": destination / "img"}
    if len(jobs) > 1:
        options["reg_data_dir"] = destination / "reg"
    options |= {"output_dir": destination / "model", "logging_dir": destination / "log"}
    return Arranged(copied=copied, options={name: str(path) for name, path in options.items()})


def _folder_name(concept: Concept) -> str:
    words = [_prompt("instance_prompt", concept.instance_prompt)]
    if concept.class_prompt.strip():
        words.append(_prompt("class_prompt", concept.class_prompt))
    name = f"{_repeats(concept.repeats)}_{' '.join(words)}"
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError("instance_prompt: too long for the folder name it becomes; shorten it")
    return name


def _prompt(name: str, text: str) -> str:
    text = " ".join(text.split())
    if not text:
        raise ValueError(f"{name}: empty; enter the words for the concept, such as sks cat")
    if invalid := NOT_IN_NAMES.search(text):
        raise ValueError(f"{name}: becomes a folder name, which cannot contain {invalid[0]!r}; remove it")
    if text.endswith("."):
        raise ValueError(f"{name}: becomes a folder name, which cannot end with a period; remove it")
    return text


def _repeats(number: Any) -> int:
    if not isinstance(number, int | float) or int(number) != number or not 1 <= number <= 100_000:
        raise ValueError(f"repeats: must be a whole number from 1 to 100000, not {number}")
    return int(number)


def typed_folder(name: str, typed: str) -> Path:
    """Return the folder that was typed into a field. Raises ValueError if none was."""
    if not typed.strip():
        raise ValueError(f"{name}: empty; enter a folder")
    return Path(os.path.expanduser(typed.strip())).absolute()


def _source(name: str, typed: str, destination: Path) -> Path:
    source = typed_folder(name, typed)
    if not source.is_dir():
        raise ValueError(f"{name}: folder not found: '{source}'")
    if destination.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"destination: '{destination}' is inside the {name} folder; choose another folder")
    if not find_images(source):
        raise ValueError(f"{name}: no images (png, jpg, webp, bmp) in '{source}'")
    return source


def _copy_all(source: Path, folder: Path, endings: Collection[str]) -> Copied:
    copied = Copied(folder=folder)
    images = find_images(source)
    caption_files = [find_captions(source, images, ending).found for ending in sorted(endings)]
    for image in images:
        captions = [file for files in caption_files if (file := files.get(image)) and file.is_file()]
        try:
            _copy(image, captions, copied)
        except OSError as error:
            copied.failed.append(f"{image.name} ({error.strerror or error})")
            if error.errno == errno.ENOSPC:
                copied.remarks.append("the disk is full: free some space and copy again; files already copied are kept")
                break
    if below := sum(path.is_dir() and any(each_image(path)) for path in source.iterdir()):
        copied.remarks.append(
            f"{below} subfolders with images in '{source}' were skipped: copy each as its own concept"
        )
    others = [path.name for path in folder.parent.iterdir() if path != folder and path.is_dir()]
    twins = [name for name in others if _words(name) == _words(folder.name)]
    if twins:
        copied.remarks.append(f"{some(twins)} has the same prompt and is trained too; delete it if it is outdated")
    return copied


def _words(name: str) -> str | None:
    repeats_and_words = numbered(name)
    return repeats_and_words[1] if repeats_and_words else None


def _copy(image: Path, captions: list[Path], copied: Copied) -> None:
    """Copy an image with its captions to the first name that is free."""
    stems = (image.stem, *(f"{image.stem}_{number}" for number in range(2, 10_000)))
    for stem in stems:
        target = copied.folder / f"{stem}{image.suffix}"
        targets = {caption: target.with_suffix(caption.suffix) for caption in captions}
        if target.exists():
            if not _same(image, target):
                continue
            copied.unchanged += 1
        elif any(file.exists() and not _same(caption, file) for caption, file in targets.items()):
            continue
        else:
            _copy_file(image, target)
            copied.images += 1
            if stem != image.stem:
                copied.renamed.append(f"{image.name} as {target.name}")
        for caption, file in targets.items():
            if not file.exists():
                _copy_file(caption, file)
                copied.captions += 1
            elif not _same(caption, file):
                copied.remarks.append(f"{file.name} already exists with a different text and was kept")
        return


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file completely or not at all."""
    with atomic_file(target) as part:
        shutil.copy2(source, part)
