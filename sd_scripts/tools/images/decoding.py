"""Decode images of all kinds, also those that training does not read: HEIC, TIFF, GIF, 16 bit, CMYK, animated."""

import contextlib
import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sd_scripts.data.sources.colour_profiles import changes_colours
from sd_scripts.data.sources.images import Pixels, UnreadableImage, upright_srgb
from sd_scripts.formats.images.image_files import CONVERTED, SHOWN, read_with

UNKNOWN: dict[tuple[str, ...], str] = {
    (".heic", ".heif", ".hif"): "HEIC needs the package pi-heif: pip install pi-heif",
    (".jxl",): "JPEG XL needs the package pillow-jxl-plugin: pip install pillow-jxl-plugin",
    (".svg",): "SVG can contain programs and is not opened; export it as PNG",
    (".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"): "raw photos are not developed; export it "
    "as TIFF or JPEG",
}
"""Why files with these extensions are not read."""
DEEP = ("I", "F")
"""Pillow's grey modes of 32 bits."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """The frames of an image file as arrays (H, W, 3) in sRGB, or (H, W, 4) with transparency."""

    frames: Sequence[Pixels]
    format: str
    """Pillow's name of the format."""
    is_plain: bool
    """Whether training and other programs read the file as it is: PNG, JPEG or WebP in 8 bits, RGB, not animated."""


def decoded(path: Path, most_frames: int = 1) -> Decoded:
    """Return an image, upright and in 8 bits, with at most this many frames, evenly spaced. Raises UnreadableImage."""
    _register()
    for suffixes, why in UNKNOWN.items():
        if path.suffix.lower() in suffixes and path.suffix.lower() not in Image.registered_extensions():
            raise UnreadableImage(path, why)
    try:
        return read_with(path, lambda image: _decoded(image, path, most_frames), CONVERTED)
    except Exception as error:  # broken files raise different errors by format
        raise UnreadableImage(path, error) from error


@functools.cache
def _register() -> None:
    """Let Pillow read the formats of packages that are installed."""
    Image.init()
    with contextlib.suppress(ImportError):
        importlib.import_module("pi_heif").register_heif_opener()
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_jxl")  # registers itself


def _decoded(image: Image.Image, path: Path, most_frames: int) -> Decoded:
    # the further frames of a camera's MPO are previews and views
    count = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    plain = _is_plain(image, path, count)
    format = image.format or ""
    frames = []
    for number in range(wanted := min(count, most_frames)):
        if count > 1:
            image.seek(number * count // wanted)
        frames.append(_pixels(upright_srgb(_in_eight_bits(image), path)))
    return Decoded(frames=frames, format=format, is_plain=plain)


def _is_plain(image: Image.Image, path: Path, frames: int) -> bool:
    tiles = getattr(image, "tile", ())  # how the pixels are stored
    named = Image.registered_extensions().get(path.suffix.lower())
    return (
        image.format in SHOWN
        and image.format == named
        and frames == 1
        and image.mode in ("RGB", "RGBA", "L", "LA", "P", "1")
        and not (tiles and "16" in str(tiles[0][3]))
        and not changes_colours(image)
    )


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of 32 bits in 8; others unchanged."""
    if image.mode not in DEEP:
        return image
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    top = values.max(initial=0)
    largest = 1.0 if image.mode == "F" and top <= 1 else 255.0 if top <= 255 else 65535.0 if top <= 65535 else top
    return Image.fromarray((values.clip(0, largest) * (255 / largest)).round().astype(np.uint8))


def _pixels(image: Image.Image) -> Pixels:
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))
    pixels = np.array(image.convert("RGBA"))
    return pixels if (pixels[..., 3] < 255).any() else np.ascontiguousarray(pixels[..., :3])
