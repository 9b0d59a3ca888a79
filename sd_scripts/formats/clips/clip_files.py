"""Finds clips: video files, and folders of images that are the frames of one clip."""

import os
from collections.abc import Mapping
from pathlib import Path

from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.images.image_folders import files_in, find_images, has_suffix


def is_clip(path: Path) -> bool:
    """Return whether a path is named like a video file."""
    return has_suffix(path.name, CLIP_SUFFIXES)


def find_clips(folder: Path, *, files: Mapping[str, Path] | None = None) -> list[Path]:
    """Return the video files directly in a folder, sorted. `files` are the files_in the folder, if they are known."""
    files = files_in(folder) if files is None else files
    return [files[name] for name in sorted(files, key=os.path.normcase) if has_suffix(name, CLIP_SUFFIXES)]


def find_frame_folders(folder: Path) -> list[Path]:
    """Return the folders directly in a folder that contain images, sorted: each is a clip."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in folders if find_images(path)]


def frame_files(folder: Path) -> list[Path]:
    """Return the frames of a clip that is a folder of images, by name."""
    return find_images(folder)
