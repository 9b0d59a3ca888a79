"""Finds the control images of training images by name: `cat.png` has `cat.png`, `cat_0.png`, `cat_1.png`.
Checks the ones that a prompt names."""

import functools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from sd_scripts.formats.clips.clip_files import find_clips, find_frame_folders, is_clip
from sd_scripts.formats.clips.probe import UnreadableClip, probe
from sd_scripts.formats.images.folder_names import existing_folder, normalized
from sd_scripts.formats.images.image_folders import find_images
from sd_scripts.formats.words import some


def control_folders(folder: str, subset: str, *, clips: bool = False) -> list[Path]:
    """Return where the control images of a subset are: in the folder, and below it in one named like the subset.

    Raises ValueError, to follow the option's name, if there is no such folder or no image in it.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"folder not found: {folder!r}")
    folders = [place for place in (root, existing_folder(root / subset)) if place.is_dir()]
    try:
        empty = not any(_controls_in(place, clips) for place in folders)
    except OSError as error:
        raise ValueError(f"{error.filename!r} cannot be read: {error.strerror}") from error
    if empty:
        raise ValueError(f"no images in {folder!r}; add a control image for each training image")
    return folders


def _controls_in(folder: Path, clips: bool) -> list[Path]:
    """Return the images of a folder; with `clips` also its clips, as files and as folders of frames."""
    found = find_images(folder)
    return [*found, *find_clips(folder), *find_frame_folders(folder)] if clips else found


def find_controls(
    folder: str, subset: str, images: Iterable[Path], *, clips: bool = False
) -> dict[Path, tuple[Path, ...]]:
    """Return the control images of each image: first the one of the same stem, then by number. With `clips` images and
    clips may have control clips: the same name, with any extension or as a folder.

    Longer names choose first, so `a_b_1.png` belongs to `a_b.png` and not to `a.png`. Raises ValueError, to follow the
    option's name, if an image has none or a name ends in something other than a number.
    """
    images = list(images)
    stems = {image.stem for image in images}
    files = [
        path
        for place in control_folders(folder, subset, clips=clips)
        for path in _controls_in(place, clips)
        if path.name in stems or not path.is_dir()
    ]
    exact = _by_image((path, path.stem) for path in files)
    loose = functools.cache(lambda: _by_image((path, normalized(path.stem)) for path in files))
    taken: set[Path] = set()

    def untaken(choice: Sequence[tuple[Path, str]]) -> dict[Path, str]:
        return {path: end for path, end in choice if path not in taken}

    controls: dict[Path, tuple[Path, ...]] = {}
    for image in sorted(images, key=lambda image: (-len(image.stem), image)):
        ends = untaken(exact.get(image.stem, ())) or untaken(loose().get(normalized(image.stem), ()))
        taken.update(ends)
        if wrong := [path.name for path, end in ends.items() if end and not end.isdecimal()]:
            raise ValueError(
                f"{some(wrong)} in {folder!r} must be named like its image, or end in a number like {image.stem}_0.png"
            )
        controls[image] = tuple(sorted(ends, key=lambda path: (int(ends[path] or -1), path)))
    if missing := [image.name for image in images if not controls[image]]:
        raise ValueError(
            f"{folder!r} has no control image for {len(missing)} of {len(images)} images: {some(missing)}; name it "
            "like the image"
        )
    return controls


def _by_image(stems: Iterable[tuple[Path, str]]) -> dict[str, list[tuple[Path, str]]]:
    """Return the files by the stem of each image that they may belong to: their own, or the part before an
    underscore; each with "" or the part after it."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for path, stem in stems:
        found.setdefault(stem, []).append((path, ""))
        for underscore in re.finditer("_", stem):
            found.setdefault(stem[: underscore.start()], []).append((path, stem[underscore.end() :]))
    return found


def why_unreadable(name: str) -> str | None:
    """Return why a prompt cannot have this control image, one sentence; None if it can be read."""
    try:
        path = Path(os.path.expanduser(name))
        if not path.is_file():
            return f"file not found: {name!r}"
        status = path.stat()
    except (OSError, ValueError):  # a name too long, NUL in it
        return f"file not found: {name!r}"
    return _why_not_decoded(path, status.st_mtime_ns, status.st_size)


def why_no_clip(name: str) -> str | None:
    """Return why a prompt cannot have this control clip, a file, a folder of frames or an image, one sentence; None if
    it can be read."""
    try:
        path = Path(os.path.expanduser(name))
        if not path.is_dir() and not (path.is_file() and is_clip(path)):
            return why_unreadable(name)
        probe(path)
    except UnreadableClip as error:
        return f"'{path}' {error}"
    except (OSError, ValueError):  # a name too long, NUL in it, a folder that may not be read
        return f"file not found: {name!r}"
    return None


@functools.lru_cache(maxsize=256)
def _why_not_decoded(path: Path, written: int, size: int) -> str | None:
    """Return why a file, in its current version, is not an image."""
    from sd_scripts.formats.images.image_files import read_with  # Pillow is slow to import

    try:
        read_with(path, lambda image: image.load())
    except Exception:  # broken files raise different errors by format
        return f"'{path}' cannot be read as an image; choose a PNG, JPEG or WebP file"
    return None
