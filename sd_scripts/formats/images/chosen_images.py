"""The images that a person chose for a tool: a list of them in a file, and the folder that contains all of them."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from sd_scripts.formats.documents import read_text, split_lines
from sd_scripts.formats.images.image_folders import has_suffix
from sd_scripts.formats.words import counted, some


def listed_images(file: Path, suffixes: Collection[str]) -> list[Path]:
    """Return the images that the lines of `image_list` name, each once. Raises ValueError, one sentence."""
    try:
        paths = [Path(line.strip()) for line in split_lines(read_text(file)) if line.strip()]
    except ValueError as error:
        raise ValueError(f"image_list: {error}") from None
    if not paths:
        raise ValueError(f"image_list: '{file}' names no image")
    if wrong := [path.name for path in paths if not has_suffix(path.name, suffixes) or not path.is_file()]:
        raise ValueError(f"image_list: {counted(len(wrong), 'line')} of '{file}' are not images: {some(wrong)}")
    return list(dict.fromkeys(paths))


def common_folder(images: Iterable[Path]) -> Path:
    """Return the folder that contains all of some images."""
    return Path(os.path.commonpath([image.absolute().parent for image in images]))
