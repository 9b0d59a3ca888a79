"""What an image tool makes of an image: pieces of it, each with the place that it was cut from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sd_scripts.data.sources.images import Pixels, resize

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""


class NoCopy(ValueError):
    """Raised for an image that cannot be copied; the message names it. The others are not concerned."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of an image, possibly at a different size."""

    pixels: Pixels
    """(H, W, 3), or (H, W, 4) with transparency."""
    box: Box
    """Of the image, in its pixels."""
    mask: Pixels | None = None
    """(H, W): a new mask; None: the mask of the image comes along, if it has one."""

    def cut(self, mask: Pixels, size: tuple[int, int]) -> Pixels:
        """Return the part of a mask that belongs to this piece of an image of `size` (width, height)."""
        left, top, width, height = self.box
        whole = _resized(mask, size)
        return _resized(np.ascontiguousarray(whole[top : top + height, left : left + width]), self.pixels.shape[1::-1])


def _resized(mask: Pixels, size: tuple[int, int]) -> Pixels:
    """Return a mask at a size (width, height); what is enlarged has no values beyond its own, as Lanczos would make."""
    is_larger = size[0] > mask.shape[1] or size[1] > mask.shape[0]
    return resize(mask, size, "bilinear" if is_larger else "area")


@dataclass(frozen=True, kw_only=True)
class Edited:
    """The pieces of one frame, and what a person should know of it."""

    pieces: Sequence[Piece] = field(default=())
    """Empty: no copy is made."""
    is_changed: bool = True
    """Whether the piece differs from the image."""
    note: str = ""


ImageTool = Callable[[Pixels], Edited]
"""Edits one frame; may be called by several threads."""


def whole(pixels: Pixels, note: str = "") -> Edited:
    """Return an image as it is."""
    piece = Piece(pixels=pixels, box=(0, 0, pixels.shape[1], pixels.shape[0]))
    return Edited(pieces=[piece], is_changed=False, note=note)


def cropped(pixels: Pixels, box: Box) -> Piece:
    left, top, width, height = box
    return Piece(pixels=np.ascontiguousarray(pixels[top : top + height, left : left + width]), box=box)


def colours(pixels: Pixels) -> Pixels:
    """Return the colours (H, W, 3) of an image; what is transparent becomes white, as in training."""
    if pixels.shape[2] == 3:
        return pixels
    opacity = pixels[..., 3:].astype(np.float32) / 255
    return np.rint(pixels[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
