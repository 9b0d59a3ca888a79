"""Small clips as MP4 files, and frames that show which of them were decoded."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sd_scripts.formats.clips.mp4 import write_mp4
from sd_scripts.testing.clips import Frames

COLOURS = ((200, 30, 90), (20, 160, 240), (250, 250, 250))
"""Of the frames in turn."""
COUNTED, LEVELS = 48, 5
"""Frames that counting_frames distinguishes, and the difference in brightness of one to the next."""


def make_frames(size: tuple[int, int], count: int = 3) -> Iterator[Image.Image]:
    """Yield frames of one colour each, with a darker last column."""
    for number in range(count):
        red, green, blue = COLOURS[number % len(COLOURS)]
        image = Image.new("RGB", size, (red, green, blue))
        image.paste((red // 2, green // 2, blue // 2), (size[0] - 1, 0, *size))
        yield image


def make_clip(
    path: Path,
    size: tuple[int, int] = (64, 48),
    count: int = 3,
    fps: float = 8,
    texts: Mapping[str, str] | None = None,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(path, make_frames(size, count), fps, texts)
    return path


def counting_frames(count: int, size: tuple[int, int] = (64, 48)) -> Frames:
    """Return frames whose brightness is their index modulo COUNTED, so that a test sees which ones were decoded."""
    width, height = size
    levels = [16 + LEVELS * (number % COUNTED) for number in range(count)]
    return np.stack([np.full((height, width, 3), level, dtype=np.uint8) for level in levels])


def number_of(frame: NDArray[np.uint8]) -> int:
    """Return the index of one of the counting_frames, as far as it survived encoding."""
    return round((float(frame.mean()) - 16) / LEVELS)


def write_frames(folder: Path, frames: Iterable[NDArray[np.uint8]]) -> Path:
    """Write frames as a folder of images, which is a clip too."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(frames):
        Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return folder
