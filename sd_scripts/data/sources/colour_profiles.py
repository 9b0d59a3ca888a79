"""Convert images to sRGB by their colour profiles, so that a model sees the colours that programs display."""

import functools
import io

import numpy as np
from PIL import Image, ImageCms

from sd_scripts.data.sources.png_colours import png_profile

GREY = ("1", "L", "LA", "I;16", "I;16L", "I;16B", "I;16N")
"""Pillow's modes of grey images."""
ROUNDING = 2
"""Largest difference of a colour, of 255, up to which a profile counts as sRGB."""


def changes_colours(image: Image.Image) -> bool:
    """Return whether `to_srgb` changes the colours of an open image, which is not decoded for it."""
    return _conversion(profile_of(image), image.mode) is not None


def profile_of(image: Image.Image) -> bytes:
    """Return the ICC profile of an open image whose pixels are not decoded yet, or one made from a PNG's chunks
    instead; b"" if there is none."""
    stated = png_profile(image, grey=image.mode in GREY) if image.format == "PNG" else b""
    return stated or image.info.get("icc_profile") or b""


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Return an image of 8 bits, converted by this ICC profile: as RGB, or RGBA if it has transparency.

    Without a profile, and with one that is sRGB, broken or made for other kinds of images, it is returned unchanged.
    """
    conversion = _conversion(profile, image.mode)
    if conversion is None:
        return image
    opacity = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
    converted = conversion.apply(image.convert(conversion.input_mode))
    if opacity:
        converted.putalpha(opacity)
    return converted


@functools.lru_cache(maxsize=32)
def _conversion(profile: bytes, image_mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the conversion from a profile to sRGB; None if images of this mode keep their colours."""
    if not profile:
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = _input_mode(source.profile.xcolor_space.strip(), image_mode)
        if mode is None:
            return None
        # colorimetric, since the perceptual tables of some sRGB profiles change colours; optimized, dark grey is off by
        # up to 10
        conversion = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION | (ImageCms.Flags.NOOPTIMIZE if mode == "L" else 0),
        )
    except (ImageCms.PyCMSError, OSError):
        return None
    return conversion if mode == "CMYK" or _moves_colours(conversion, mode) else None


def _input_mode(space: str, image_mode: str) -> str | None:
    """Return the mode in which a profile of this colour space reads images of `image_mode`; None if it cannot."""
    if space == "RGB":
        return None if image_mode == "CMYK" else "RGB"
    if space == "GRAY":
        return "L" if image_mode in GREY else None
    return "CMYK" if space == image_mode == "CMYK" else None


def _moves_colours(conversion: ImageCms.ImageCmsTransform, mode: str) -> bool:
    levels = np.linspace(0, 255, 9).round().astype(np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    before = Image.fromarray(colours).convert(mode)
    after = np.asarray(conversion.apply(before), dtype=int)
    return bool(np.abs(after - np.asarray(before.convert("RGB"), dtype=int)).max() > ROUNDING)
