"""Open images from elsewhere with Pillow, whatever a file contains next to its pixels: regular files only, and only by
the readers named here. Pillow's others are less used, and some start programs, such as Ghostscript for EPS."""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from PIL import Image

from sd_scripts.formats.regular_files import open_regular

Result = TypeVar("Result")
SHOWN = ("PNG", "JPEG", "WEBP")
"""Formats that browsers show."""
TRAINED = (*SHOWN, "BMP", "AVIF", "JXL")
"""Formats that training and generating read, as far as they are installed."""
CONVERTED = (*TRAINED, "HEIF", "TIFF", "GIF", "JPEG2000", "PPM", "TGA", "PCX", "QOI", "ICO", "PSD", "DDS")
"""Formats that are converted; HEIF and JXL as far as their plugins are installed."""
LARGEST_PROFILE = 16 * 2**20
"""Bytes of an ICC profile that is read; profiles of printers have up to 3 MB."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")


@contextmanager
def open_image(source: Path | bytes, formats: tuple[str, ...] = SHOWN) -> Iterator[Image.Image]:
    """Open an image in one of these formats; its pixels are decoded when they are needed.

    Raises OSError for a file that is missing, not regular or not an image, and whatever else Pillow raises for a broken
    one.
    """
    Image.init()
    known = [name for name in formats if name in Image.OPEN]
    with _opened(source) as file, Image.open(file, formats=known) as image:
        yield image


def _opened(source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)


def texts_of(image: Image.Image) -> dict[str, str]:
    """Return the text chunks of an image, by keyword."""
    return {str(key): text for key, text in image.info.items() if isinstance(text, str)}


def read_with(
    source: Path | bytes, read: Callable[[Image.Image], Result], formats: tuple[str, ...] = TRAINED
) -> Result:
    """Return the result of `read` for an image that a model sees, open until then. `read` may be called
    twice.

    Pillow refuses a PNG with long texts, such as workflows or embedded masks, or with a large colour profile. Such a
    file is read without its texts, which no caller wants. Raises what open_image raises.
    """
    try:
        with open_image(source, formats) as image:
            return read(image)
    except ValueError:
        content, profile = _without_texts(source)
        if content is None:
            raise
    with open_image(content, formats) as image:
        if profile:
            image.info["icc_profile"] = profile
        return read(image)


def png_chunk(file: IO[bytes], kind: bytes, until: bytes = b"IEND") -> bytes:
    """Return the content of a PNG's first chunk of this kind before the first `until`; b"" if there is none. The file
    stays at its position."""
    position = file.tell()
    try:
        file.seek(len(_SIGNATURE))
        while len(head := file.read(8)) == 8 and head[4:] != until:
            length = int.from_bytes(head[:4], "big")
            if head[4:] == kind:
                return file.read(length)
            file.seek(length + 4, 1)  # and its CRC
        return b""
    finally:
        file.seek(position)


def _without_texts(source: Path | bytes) -> tuple[bytes | None, bytes]:
    """Return a PNG without its texts and its ICC profile, and the profile; None for a different format."""
    kept = io.BytesIO()
    profile = b""
    before_pixels = True
    with _opened(source) as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return None, b""
        kept.write(_SIGNATURE)
        while len(head := file.read(8)) == 8:
            length = int.from_bytes(head[:4], "big")
            kind = head[4:]
            if kind in _TEXTS:
                file.seek(length + 4, 1)  # and its CRC
                continue
            content = file.read(length + 4)
            before_pixels = before_pixels and kind != b"IDAT"
            if kind != b"iCCP":
                kept.write(head + content)
            elif before_pixels:
                profile = _unpacked_profile(content)
    return kept.getvalue(), profile


def _unpacked_profile(chunk: bytes) -> bytes:
    """Return the profile in an iCCP chunk, which follows its name, a NUL and the compression method; b"" if it is
    broken or too large."""
    unpacking = zlib.decompressobj()
    try:
        profile = unpacking.decompress(chunk[chunk.find(b"\0") + 2 :], LARGEST_PROFILE)
    except zlib.error:
        return b""
    return profile if unpacking.eof else b""
