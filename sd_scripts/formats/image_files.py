"""Open images from elsewhere: regular files only, and only by the readers named here. Pillow's others are less used,
and some start programs, such as Ghostscript for EPS."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from sd_scripts.formats.regular_files import open_regular

SHOWN = ("PNG", "JPEG", "WEBP")
"""Formats that browsers show."""
TRAINED = (*SHOWN, "BMP", "AVIF", "JXL")
"""Formats that training and generating read, as far as they are installed."""


@contextmanager
def open_image(source: Path | bytes, formats: tuple[str, ...] = SHOWN) -> Iterator[Image.Image]:
    """Open an image in one of these formats; its pixels are decoded when they are needed.

    Raises OSError for what is not there, no regular file or no image, and whatever else Pillow raises for a broken one.
    """
    Image.init()
    known = [name for name in formats if name in Image.OPEN]
    file = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    with file, Image.open(file, formats=known) as image:
        yield image


def texts_of(image: Image.Image) -> dict[str, str]:
    """Return the text chunks of an image, by keyword."""
    return {str(key): text for key, text in image.info.items() if isinstance(text, str)}
