"""The files that belong to an image, and where they go when it is moved, put into the trash and back."""

import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sd_scripts.formats.editing.journal import Move
from sd_scripts.formats.editing.moving import TRASH
from sd_scripts.formats.images.caption_files import ANY_IMAGES, CAPTION_ENDINGS, find_captions
from sd_scripts.formats.images.folder_names import dotted, numbered
from sd_scripts.formats.images.image_folders import (
    IMAGE_SUFFIXES,
    MANY_REPEATS,
    files_in,
    has_suffix,
)
from sd_scripts.formats.words import some

CACHE = re.compile(
    r"_(?:\d{2,5}x\d{2,5}(?:x\d{1,5})?_\w{1,40}|te_outputs(?:_[0-9a-f]{8})?|\w{1,40}_te(?:_[0-9a-f]{8})?)"
    r"\.(?:safetensors|npz)"
)
"""What follows an image's name in the name of its cache files."""
STAGED = ".crop-"
NUMBER = re.compile(r"_\d{1,3}$")
"""Of a control image, where there are several."""


@dataclass(frozen=True)
class FolderFiles:
    """The files of one folder, and which of them belong together."""

    folder: Path
    caption_extension: str = ".txt"
    masks: tuple[Path, ...] = ()
    """Folders of masks and control images, as training is given them."""

    @cached_property
    def _files(self) -> dict[str, Path]:
        return files_in(self.folder)

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self._files)

    @cached_property
    def _captions(self) -> list[dict[Path, Path]]:
        """Return the caption file of each image, for each extension of caption files."""
        images = [path for name, path in self._files.items() if has_suffix(name, ANY_IMAGES)]
        endings = dict.fromkeys((dotted(self.caption_extension), *CAPTION_ENDINGS))
        return [find_captions(self.folder, images, ending, self._files).found for ending in endings]

    @cached_property
    def _readers(self) -> Counter[Path]:
        """Return how many images each caption file has."""
        return Counter(file for found in self._captions for file in found.values())

    def of(self, image: Path, leaving: frozenset[Path]) -> Iterator[tuple[Path, bool]]:
        """Yield the files of an image, and whether each stays because images that are not `leaving` share it."""
        yield image, False
        for found in self._captions:
            if file := found.get(image):
                shared = self._readers[file] > 1 and any(
                    other not in leaving for other, caption in found.items() if caption == file
                )
                yield file, shared
        yield from ((file, False) for file in self.caches(image))

    def caches(self, image: Path) -> Iterator[Path]:
        """Yield the cache files of an image."""
        for prefix in (image.stem, image.name):
            place = bisect_left(self._names, prefix)
            while place < len(self._names) and (name := self._names[place]).startswith(prefix):
                if CACHE.fullmatch(name, len(prefix)) or (prefix == image.stem and name == f"{prefix}.npz"):
                    yield self._files[name]
                place += 1

    def beside(self, image: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the masks and control images of an image, each with the folder that training is given."""
        yield from self._beside.get(image.stem, ())

    @cached_property
    def _beside(self) -> dict[str, list[tuple[Path, Path]]]:
        """Return the masks and control images by the stem of their image: `a_1` is for the image `a_1`, or for `a` if
        there is no such image."""
        found: dict[str, list[tuple[Path, Path]]] = {}
        images = {path.stem for name, path in self._files.items() if has_suffix(name, ANY_IMAGES)}
        for root in self.masks:
            for folder in (root, root / self.folder.name):
                for path in files_in(folder).values() if folder.is_dir() else ():
                    if has_suffix(path.name, IMAGE_SUFFIXES):
                        stem = path.stem if path.stem in images else NUMBER.sub("", path.stem)
                        found.setdefault(stem, []).append((path, root))
        return found


def moves_to(
    images: Sequence[Path], target: Path, extension: str, masks: tuple[Path, ...] = ()
) -> tuple[list[Move], dict[Path, Path]]:
    """Return the moves of images into a folder, with their captions, masks and caches; and the captions to be copied,
    source -> copy, since images that stay share them. Raises ValueError, one sentence."""
    if not target.is_dir():
        raise ValueError(f"folder not found: '{target}'")
    moves = []
    copies = {}
    for files, within in _by_folder(images, extension, masks):
        if files.folder.samefile(target):
            continue
        leaving = frozenset(within)
        for image in within:
            _require_no_relative_link(image)
            for file, stays in files.of(image, leaving):
                if stays:
                    copies[file] = target / file.name
                else:
                    moves.append(Move(source=file, target=target / file.name))
            for file, root in files.beside(image):
                if file.parent != root:
                    moves.append(Move(source=file, target=root / target.name / file.name))
    return _each_once(moves), copies


def moves_to_trash(images: Sequence[Path], extension: str, masks: tuple[Path, ...] = ()) -> list[Move]:
    """Return the moves of images into the trash of their folder, with their captions, masks and caches."""
    stamp = time.strftime("%Y-%m-%d %H.%M.%S")
    moves = []
    for files, within in _by_folder(images, extension, masks):
        leaving = frozenset(within)
        for image in within:
            own = [file for file, stays in files.of(image, leaving) if not stays]
            own += [file for file, _ in files.beside(image)]
            moves += [Move(source=file, target=_trashed(file, stamp)) for file in own]
    return _each_once(moves)


def moves_of_crop(image: Path, cut: Path, along: Mapping[Path, Path], caches: Iterable[Path]) -> list[Move]:
    """Return the moves by which a cut replaces its image, and cuts of control images `along` replace these, source ->
    cut. What is replaced goes to the trash, with the `caches` of the image."""
    stamp = time.strftime("%Y-%m-%d %H.%M.%S")
    leaving = [Move(source=file, target=_trashed(file, stamp)) for file in (image, *caches, *along)]
    coming = [Move(source=part, target=file.with_suffix(".png")) for file, part in {image: cut, **along}.items()]
    return [*leaving, *coming]


def staging_for(file: Path, number: str) -> Path:
    """Return where the cut of an image is written before it takes its place: on the same disk."""
    return file.parent / TRASH / f"{STAGED}{number}" / f"{file.stem}.png"


def staged_in(folder: Path) -> list[Path]:
    """Return the folders of cuts that were undone, and could be made again."""
    trash = folder / TRASH
    return [path for path in trash.iterdir() if path.name.startswith(STAGED)] if trash.is_dir() else []


def moves_back(trashed: Sequence[Path]) -> list[Move]:
    """Return the moves of files from the trash to where they were. Raises ValueError for others."""
    moves = []
    for path in trashed:
        folder = trash_of(path)
        if folder is None:
            raise ValueError(f"'{path}' is not in the trash")
        together = [file for file in path.parent.iterdir() if file.is_file() and _belongs(file, path)]
        moves += [Move(source=file, target=folder / file.name) for file in together]
    return _each_once(moves)


def trash_of(path: Path) -> Path | None:
    """Return the folder in whose trash a file is; None if it is in none."""
    within = path.parent.parent
    return within.parent if within.name == TRASH else None


def in_trash(folders: Iterable[Path]) -> list[Path]:
    """Return the images in the trash of these folders, newest first."""
    found = []
    for folder in folders:
        trash = folder / TRASH
        days = sorted((path for path in trash.iterdir() if path.is_dir()), reverse=True) if trash.is_dir() else []
        for day in days:
            if not day.name.startswith("."):
                found += [path for name, path in sorted(files_in(day).items()) if has_suffix(name, ANY_IMAGES)]
    return found


def renamed_for(folder: Path, repeats: int) -> Path:
    """Return the path of a folder that is named for this number of repeats. Raises ValueError, one sentence."""
    name = numbered(folder.name)
    if name is None:
        raise ValueError(
            f"repeats: the name {folder.name!r} does not begin like 10_cat; set num_repeats in the settings of the run"
        )
    if not 0 < repeats <= MANY_REPEATS:
        raise ValueError(f"repeats: must be 1 to {MANY_REPEATS:,}")
    return folder.with_name(f"{repeats}_{name[1]}")


def _trashed(file: Path, stamp: str) -> Path:
    return file.parent / TRASH / stamp / file.name


def _belongs(file: Path, image: Path) -> bool:
    """Return whether a file in the trash is an image, or one of the others of an image."""
    stem = image.stem
    others = {f"{stem}{ending}".lower() for ending in CAPTION_ENDINGS}
    rest = file.name.removeprefix(stem)
    return (
        file == image
        or file.name.lower() in others
        or (file.name.startswith(stem) and (rest == ".npz" or CACHE.fullmatch(rest) is not None))
        or (file.stem == stem and not has_suffix(file.name, ANY_IMAGES))
    )


def _by_folder(
    images: Sequence[Path], extension: str, masks: tuple[Path, ...]
) -> Iterator[tuple[FolderFiles, list[Path]]]:
    by_folder: dict[Path, list[Path]] = {}
    for image in dict.fromkeys(images):
        by_folder.setdefault(image.parent, []).append(image)
    for folder, within in by_folder.items():
        yield FolderFiles(folder, extension, masks), within


def _each_once(moves: Iterable[Move]) -> list[Move]:
    """Return the moves by source: two images of the same name share captions and caches."""
    by_source: Mapping[Path, Move] = {move.source: move for move in moves}
    return [*by_source.values()]


def _require_no_relative_link(image: Path) -> None:
    if image.is_symlink() and not Path(image.readlink()).is_absolute():
        raise ValueError(f"{some([image.name])} is a link to a relative path, which would break; move its file instead")
