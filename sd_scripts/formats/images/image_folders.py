"""Finds the image folders of a run and their repeats, for training and for the page."""

import functools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.images.folder_names import MASKS, numbered
from sd_scripts.formats.words import some

MEDIA_TYPES = {
    ".png": "image/png",
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".jfi"), "image/jpeg"),
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".avif": "image/avif",
    ".jxl": "image/jxl",
}
"""Extension of an image file -> its media type."""
IMAGE_SUFFIXES = frozenset(MEDIA_TYPES)
MEDIA = IMAGE_SUFFIXES | CLIP_SUFFIXES
IMAGES_BY_PLUGIN = frozenset({".avif", ".jxl"})
"""Image extensions that only some installations can read."""
IMAGES = IMAGE_SUFFIXES - IMAGES_BY_PLUGIN
UNREAD_IMAGES = frozenset(
    {
        *(".tif", ".tiff", ".gif", ".apng", ".heic", ".heif", ".hif", ".jp2", ".j2k", ".jpx", ".jxr", ".tga", ".dds"),
        *(".ico", ".svg", ".psd", ".xcf", ".kra", ".exr", ".hdr", ".ppm", ".pgm", ".pbm", ".pnm", ".pcx", ".qoi"),
        *(".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
    }
)
"""Extensions of images that are not read."""
MANY_REPEATS = 1_000
"""More is rarely meant: a number like 20241122 in a folder name is a date."""
MOST_REPEATS = 100_000
SHORTEST_SIDE, LONGEST_SIDE = 32, 8192
"""Pixels of a training image: the finest grid of buckets that is common, and what no GPU exceeds."""


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """A folder of training images."""

    path: Path
    repeats: int
    class_tokens: str | None = None
    """The caption of an image that has no caption file."""


@dataclass(frozen=True, kw_only=True)
class FoundFolders:
    """The image folders that an option names, with remarks about skipped ones."""

    folders: tuple[ImageFolder, ...] = ()
    problem: str | None = None
    """Why they cannot be used for training, to follow the option's name."""
    remarks: tuple[str, ...] = ()


def files_in(folder: Path) -> dict[str, Path]:
    """Return the files directly in a folder by name, without a look at each: a dataset may have 100,000."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries if _is_file(entry)}
    # iterdir makes paths much faster than a folder and a name do
    return {name: path for path in folder.iterdir() if (name := path.name) in names}


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads nowhere
        return False


def has_suffix(name: str, suffixes: Collection[str]) -> bool:
    """Return whether a file name has one of these extensions, in any case."""
    stem, _, ending = name.lower().rpartition(".")
    return bool(stem) and f".{ending}" in suffixes  # .png is a hidden file without an extension


def each_image(folder: Path, *, recursive: bool = False, suffixes: Collection[str] = IMAGE_SUFFIXES) -> Iterator[Path]:
    """Yield the images directly in a folder, and with `recursive` in those below it, except in hidden folders, such as
    the trash."""
    found = folder.rglob("*") if recursive else folder.iterdir()
    images = (path for path in found if has_suffix(path.name, suffixes) and path.is_file())
    return (path for path in images if not _is_below_hidden(path, folder))


def _is_below_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts[:-1])


def unread_images(names: Iterable[str]) -> list[str]:
    """Return those names that are of images of kinds that are not read, sorted."""
    return sorted(name for name in names if has_suffix(name, UNREAD_IMAGES))


def broken_images(folder: Path, files: Collection[str]) -> list[str]:
    """Return the names of images in a folder that are not among its `files`, sorted: links that lead nowhere, pipes."""
    return sorted(name for name in os.listdir(folder) if name not in files and has_suffix(name, IMAGE_SUFFIXES))


def find_media(folder: Path) -> list[Path]:
    """Return the images and video files directly in a folder, sorted."""
    files = files_in(folder)
    return [files[name] for name in sorted(files, key=os.path.normcase) if has_suffix(name, MEDIA)]


def find_images(folder: Path, *, recursive: bool = False, files: Mapping[str, Path] | None = None) -> list[Path]:
    """Return each_image, sorted. `files` are the files_in the folder, if they are known."""
    if recursive:
        return sorted(each_image(folder, recursive=True))
    files = files_in(folder) if files is None else files
    images = [name for name in files if has_suffix(name, IMAGE_SUFFIXES)]
    return [files[name] for name in sorted(images, key=os.path.normcase)]  # as paths sort, but faster


def is_readable(image: Path) -> bool:
    """Return whether Pillow can read the format of an image here; training skips the others."""
    return has_suffix(image.name, readable_suffixes())


@functools.cache
def readable_suffixes() -> frozenset[str]:
    from PIL import Image

    return IMAGES | (IMAGES_BY_PLUGIN & Image.registered_extensions().keys())


def image_folders(root: Path, num_repeats: int | None = None, *, allow_many_repeats: bool = False) -> FoundFolders:
    """Return the image folders of a train_data_dir or reg_data_dir.

    These are its subfolders named like `10_cat`; the folder itself if it is named so and contains images; and with
    `num_repeats` the folder itself, whatever its name.
    """
    try:
        return _found_folders(root, num_repeats, allow_many_repeats)
    except OSError as error:
        return FoundFolders(problem=f"{str(error.filename or root)!r} cannot be read: {error.strerror or error}")


def _found_folders(root: Path, num_repeats: int | None, allow_many_repeats: bool) -> FoundFolders:
    if not root.is_dir():
        return FoundFolders(problem=f"folder not found: {str(root)!r}")
    said = numbered(root.absolute().name)
    images = find_media(root)
    if num_repeats is not None:
        return _flat(root, images, num_repeats, said[1] if said else None)
    subfolders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    named = [(path, name) for path in subfolders if (name := numbered(path.name))]
    if not named and said and images:
        return _checked([ImageFolder(path=root, repeats=said[0], class_tokens=said[1])], allow_many_repeats)
    if not named:
        return FoundFolders(problem=_no_folder(root, images))
    folders = [ImageFolder(path=path, repeats=name[0], class_tokens=name[1]) for path, name in named]
    left_out = [path.name for path in subfolders if not numbered(path.name) and path.name != MASKS]
    remarks = [f"folder {name!r} is skipped: its name does not begin like 10_cat" for name in left_out]
    if images:
        remarks.append(
            f"{_counted(images)} directly in {str(root)!r} will be skipped, since only folders named like 10_cat are "
            f"used: {some([path.name for path in images])}"
        )
    return _checked(folders, allow_many_repeats, remarks)


def regularisation_folders(
    root: Path, num_repeats: int | None = None, *, allow_many_repeats: bool = False
) -> FoundFolders:
    """Return the image folders of a reg_data_dir: if training is flat (`num_repeats`), it may be flat too.

    Its images then have 1 repeat, since they are repeated anyway to match the training images.
    """
    found = image_folders(root, allow_many_repeats=allow_many_repeats)
    if num_repeats is None or found.problem is None:
        return found
    flat = image_folders(root, 1)
    return found if flat.problem else flat


def _flat(root: Path, images: list[Path], num_repeats: int, class_tokens: str | None) -> FoundFolders:
    if not images:
        return FoundFolders(
            problem=f"no images directly in {str(root)!r}, where num_repeats = {num_repeats} expects them; "
            "leave num_repeats unset to train its folders named like 10_cat"
        )
    below = [path.name for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "." and find_media(path)]
    remarks = [
        f"images in {some(below)} are skipped, since num_repeats uses only those directly in {str(root)!r}"
    ] * bool(below)
    return FoundFolders(
        folders=(ImageFolder(path=root, repeats=num_repeats, class_tokens=class_tokens),), remarks=tuple(remarks)
    )


def _no_folder(root: Path, images: list[Path]) -> str:
    none = f"no folder named like 10_cat in {str(root)!r}"
    if images:
        return f"{none}; set num_repeats = 1 to train the {_counted(images)} in it unchanged"
    return f"{none}; put the images in one, where the number is the repeats per epoch"


def _checked(folders: list[ImageFolder], allow_many: bool, remarks: Iterable[str] = ()) -> FoundFolders:
    """Drop folders with 0 repeats; report one with implausibly many repeats."""
    never = [folder.path.name for folder in folders if not folder.repeats]
    if len(never) == len(folders):
        return FoundFolders(problem=f"{some(never)}: the name sets 0 repeats; write 1 or more")
    most = MOST_REPEATS if allow_many else MANY_REPEATS
    if beyond := [folder for folder in folders if folder.repeats > most]:
        return FoundFolders(problem=_too_many(beyond[0]))
    remarks = [*remarks, *(f"folder {name!r} is skipped: its name sets 0 repeats" for name in never)]
    return FoundFolders(folders=tuple(folder for folder in folders if folder.repeats), remarks=tuple(remarks))


def _too_many(folder: ImageFolder) -> str:
    other = f"1_{folder.class_tokens or 'images'}"
    allow = f", or set allow_many_repeats if this is intended (at most {MOST_REPEATS:,})"
    return (
        f"folder {folder.path.absolute().name!r} means {folder.repeats:,} repeats of each image; "
        f"rename it to {other!r}{allow if folder.repeats <= MOST_REPEATS else ''}"
    )


def _counted(images: list[Path]) -> str:
    return f"{len(images)} image{'s' * (len(images) != 1)}"
