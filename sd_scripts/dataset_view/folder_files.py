"""What lies next to the images of a folder: captions, cached latents, and images that training does not read."""

import contextlib
import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.sources.images import UnreadableImage, read_size
from sd_scripts.data.sources.seen_files import SETTLED_NS
from sd_scripts.formats.clips.clip_files import is_clip
from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.images.caption_files import UnreadableCaptions, find_captions, read_captions
from sd_scripts.formats.images.image_folders import (
    IMAGE_SUFFIXES,
    UNREAD_IMAGES,
    files_in,
    find_images,
    has_suffix,
    is_readable,
)
from sd_scripts.machine.thumbnail_store import image_key

CACHED = re.compile(r"(.+_\d{4,}x\d{4,})_.+\.(?:safetensors|npz)")
"""Name of a file of cached latents: stem and size of the image, then the family's suffix."""
SHOWN = IMAGE_SUFFIXES | UNREAD_IMAGES | CLIP_SUFFIXES
NO_PLUGIN = "this installation of Pillow cannot read its format; convert it to PNG, JPEG or WebP"
NOT_READ = "training does not read this kind of image; convert it to PNG, JPEG or WebP"
NO_CLIPS = "this model family is not trained on clips"
NO_FILE = "it is a link to a missing file, or no file at all"


@dataclass(frozen=True, kw_only=True)
class FolderFiles:
    """The captions and caches of one folder."""

    captions: Mapping[Path, Path]
    """Caption file of each image that has one."""
    links: frozenset[str]
    """Names of files that are links."""
    cached: frozenset[str]
    """Stem and size of images with cached latents."""

    @classmethod
    def of(cls, folder: Path, caption_extension: str) -> "FolderFiles":
        """Return the files of a folder, as listed before if none has been added or removed since."""
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            changed = 0
        known = _known.get((folder, caption_extension))
        if known and known[0] == changed:
            return known[1]
        files = cls._listed(folder, caption_extension)
        if 0 < changed < time.time_ns() - SETTLED_NS:
            _known[folder, caption_extension] = changed, files
        return files

    @classmethod
    def _listed(cls, folder: Path, caption_extension: str) -> "FolderFiles":
        try:
            files = files_in(folder)
            with os.scandir(folder) as entries:
                links = frozenset(entry.name for entry in entries if entry.is_symlink())
        except OSError:
            return cls(captions={}, links=frozenset(), cached=frozenset())
        images = find_images(folder, files=files)
        cached = frozenset(found[1] for name in files if (found := CACHED.fullmatch(name)))
        captions = find_captions(folder, images, caption_extension, files).found
        return cls(captions=captions, links=links, cached=cached)

    def facts(self, path: Path, size: Size | None) -> dict[str, Any]:
        """Return the fields of a ShownImage that follow from its files."""
        text = str(path)
        try:
            stat = os.stat(text)
            bytes, changed = stat.st_size, stat.st_mtime_ns
        except OSError:
            bytes, changed = 0, 0
        is_cached = bool(self.cached) and size is not None and f"{path.stem}_{size[0]:04d}x{size[1]:04d}" in self.cached
        files = (path, self.captions.get(path)) if self.links else ()
        return {
            "key": image_key(text, bytes, changed),
            "path": text,
            "bytes": bytes,
            "cached": is_cached,
            "links": tuple(os.path.realpath(file) for file in files if file and file.name in self.links),
        }

    def caption(self, path: Path) -> tuple[str, str]:
        """Return the first line of an image's caption, and why it cannot be read."""
        if (file := self.captions.get(path)) is None:
            return "", ""
        try:
            lines = read_captions([file])[file]
        except UnreadableCaptions as error:
            return "", str(error)
        return (lines[0] if lines else ""), ""


_known: dict[tuple[Path, str], tuple[int, FolderFiles]] = {}
"""Folders listed before, with the time of their last change."""


def folders_below(root: Path) -> list[Path]:
    """Return a folder and those directly in it that contain images; none that cannot be read."""
    try:
        inner = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []
    return [folder for folder in (root, *inner) if files_of(folder)]


def files_of(folder: Path, *, besides: Collection[str] = ()) -> list[Path]:
    """Return the images of a folder, of all kinds, clips, and links to images, sorted by name, except the paths in
    `besides`."""
    with contextlib.suppress(OSError):
        names = (name for name in os.listdir(folder) if has_suffix(name, SHOWN))
        others = (name for name in names if os.path.join(folder, name) not in besides)
        return [folder / name for name in sorted(others, key=os.path.normcase)]
    return []


def why_left_out(path: Path) -> tuple[Size | None, str]:
    """Return an image's size, and why training cannot read it; empty if it can."""
    if is_clip(path):
        return None, NO_CLIPS
    if has_suffix(path.name, UNREAD_IMAGES):
        return None, NOT_READ
    if not path.is_file():
        return None, NO_FILE
    if not is_readable(path):
        return None, NO_PLUGIN
    try:
        return read_size(path), ""
    except UnreadableImage as error:
        return None, str(error).removeprefix(f"{path} ")
