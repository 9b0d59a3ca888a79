"""Hints for image folders: how many images, how many have captions, how many an epoch sees."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

from kohya_gui.form.recognise import Recognised, glance
from sd_scripts.formats.clips.clip_files import find_clips, is_clip
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.folder_names import dotted, normalized, numbered
from sd_scripts.formats.images.image_folders import ImageFolder, each_image, image_folders, is_readable
from sd_scripts.formats.words import counted, some

CAPTIONS = (".txt", ".caption", ".cap", ".tags")
"""Extensions to look for where captions with the chosen one are missing."""
SHOWN = 4
"""Folders named in a hint."""
MOST_FILES = 20_000
"""Counting stops here, so that even the root of a disk gets a quick hint."""


def train_data(
    text: str, caption_extension: str, num_repeats: int | None = None, many: bool = False, *, clips: bool = False
) -> Recognised:
    """Describe the images of a train_data_dir, with `clips` also its videos; `many` is allow_many_repeats."""
    return glance(text, lambda path: _train_data(path, dotted(caption_extension.strip()), num_repeats, many, clips))


def beside_metadata(text: str) -> Recognised:
    """Describe the images of a folder whose metadata file names those that are trained."""
    return glance(text, _beside_metadata)


def _train_data(root: Path, extension: str, num_repeats: int | None, many: bool, clips: bool) -> Recognised:
    if not root.is_dir():
        return Recognised("Folder not found", good=False)
    listing = image_folders(root, num_repeats, allow_many_repeats=many)
    if listing.problem and not listing.folders:
        return _without_folders(root, _without_path(listing.problem, root), num_repeats, clips)
    if listing.problem:
        return Recognised(_without_path(listing.problem, root), good=False)
    images = {folder.path: images_of(folder.path, clips=clips) for folder in listing.folders}
    everything = list(chain.from_iterable(images.values()))
    if not everything:
        return Recognised(f"No images in {some([folder.path.name for folder in listing.folders], SHOWN)}", good=False)
    per_epoch = sum(folder.repeats * len(images[folder.path]) for folder in listing.folders)
    captions, complete, other = _captions(images.values(), extension)
    names = _shown(listing.folders, images, root)
    left_out = "".join(f"; {_without_path(remark, root, upper=False)}" for remark in listing.remarks[:2])
    text = f"{_counted(everything)}, {captions}, {per_epoch:,} per epoch{names}{left_out}"
    return Recognised(text, good=True, warning=not complete or bool(listing.remarks), ending=other)


def _without_folders(root: Path, problem: str, num_repeats: int | None, clips: bool) -> Recognised:
    """Describe a folder without image folders: the images in it, or the folder nearby that was probably meant."""
    images = images_of(root, clips=clips) if num_repeats is None and _is_flat(root) else []
    if not images:
        return Recognised(problem, good=False, instead=_near(root))
    no_name = "no subfolders named like 10_cat that give the number of repeats"
    text = f"{_counted(images)} in the folder itself, but {no_name}"
    return Recognised(text, good=False, flat=True, images=len(images))


def _shown(folders: Iterable[ImageFolder], images: dict[Path, list[Path]], root: Path) -> str:
    """List folders with their image counts as ": 10_cat (12), 2_dog (3)"."""
    names = [f"{folder.path.name} ({len(images[folder.path])})" for folder in folders if folder.path != root]
    return f": {some(names, SHOWN)}" if names else ""


def _captions(folders: Iterable[list[Path]], extension: str) -> tuple[str, bool, str]:
    """Return how many images have a caption, in words, whether all have, and the extension that more captions have."""
    total = 0
    captioned = 0
    others = Counter[str]()
    for images in folders:
        if not images:
            continue
        files = find_captions(images[0].parent, images, extension)
        total += len(images)
        captioned += len(files.found)
        if files.missing:
            names = {normalized(entry.name) for entry in os.scandir(files.folder)}
            for image in files.missing:
                others.update(ending for ending in CAPTIONS if normalized(f"{image.stem}{ending}") in names)
    if captioned == total:
        return "all captioned", True, ""
    ending, count = next(iter(others.most_common(1)), ("", 0))
    elsewhere = f", {count} {'have' if count > 1 else 'has'} a {ending} file" if count else ""
    return f"{captioned or 'none'} with a {extension} file{elsewhere}", False, ending if count > captioned else ""


def _beside_metadata(root: Path) -> Recognised:
    if not root.is_dir():
        return Recognised("Folder not found", good=False)
    count = len(images_of(root, recursive=True))
    if not count:
        return Recognised("No images here: the metadata file must name them with their full paths", warning=True)
    found = f"{count}+" if count >= MOST_FILES else f"{count}"
    return Recognised(f"{found} images; the metadata file decides which are trained", good=True)


def images_of(folder: Path, *, recursive: bool = False, clips: bool = False) -> list[Path]:
    """Return images, and with `clips` videos, that training reads, MOST_FILES at most."""
    images = filter(is_readable, each_image(folder, recursive=recursive))
    return list(islice(chain(images, find_clips(folder) if clips else ()), MOST_FILES))


def _counted(paths: Sequence[Path]) -> str:
    clips = sum(map(is_clip, paths))
    parts = [counted(len(paths) - clips, "image"), counted(clips, "video")]
    return " and ".join(part for part in parts if not part.startswith("0 "))


def _is_flat(root: Path) -> bool:
    """Return whether neither the folder nor a subfolder is named like 10_cat."""
    names = [root.absolute().name, *(path.name for path in root.iterdir() if path.is_dir())]
    return not any(map(numbered, names))


def _near(root: Path) -> Path | None:
    """Return the only folder up to two levels below that contains folders named like 10_cat."""
    near = {
        path.parent for pattern in ("*/*", "*/*/*") for path in islice(root.glob(pattern), MOST_FILES) if _named(path)
    }
    return near.pop() if len(near) == 1 else None


def _named(path: Path) -> bool:
    return numbered(path.name) is not None and path.is_dir()


def _without_path(text: str, root: Path, upper: bool = True) -> str:
    text = text.replace(repr(str(root)), "this folder")  # the path is right above
    return text[:1].upper() + text[1:] if upper else text
