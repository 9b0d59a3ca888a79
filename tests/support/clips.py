"""Small clips as MP4 files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from PIL import Image

from sd_scripts.formats.clips.mp4 import write_mp4

COLOURS = ((200, 30, 90), (20, 160, 240), (250, 250, 250))
"""Of the frames in turn."""


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
