"""Make masks: white is trained, black is left out."""

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from sd_scripts.data.sources.images import Pixels
from sd_scripts.options.images.tools import MaskOptions
from sd_scripts.tools.images.pieces import Box, Edited, Piece, colours

MakeMask = Callable[[Pixels], Pixels]
"""Returns the mask (H, W) of an image (H, W, 3 or 4), before it is grown and feathered."""


class MaskTool:
    """Makes the mask of an image."""

    def __init__(self, options: MaskOptions, make: MakeMask) -> None:
        self._options = options
        self._make = make

    def __call__(self, pixels: Pixels) -> Edited:
        mask = self._make(pixels)
        note = ""
        if not mask.any():
            mask, note = np.full_like(mask, 255), f"nothing was found ({self._options.mask_from}): all of it is trained"
        else:
            mask = self._finished(mask)
        height, width = pixels.shape[:2]
        kept = pixels
        if self._options.save_as == "alpha":
            kept = np.dstack([pixels[..., :3], mask])
        return Edited(pieces=[Piece(pixels=kept, box=(0, 0, width, height), mask=mask)], note=note)

    def _finished(self, mask: Pixels) -> Pixels:
        options = self._options
        longest = max(mask.shape)
        if options.invert:
            mask = 255 - mask
        if by := round(abs(options.grow) * longest):
            disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * by + 1, 2 * by + 1))
            mask = (cv2.dilate if options.grow > 0 else cv2.erode)(mask, disc).astype(np.uint8, copy=False)
        if (sigma := options.feather * longest / 2) > 0.1:
            mask = cv2.GaussianBlur(mask, (0, 0), sigma).astype(np.uint8, copy=False)
        if options.floor:
            mask = np.rint(255 * options.floor + mask * (1 - options.floor)).astype(np.uint8)
        return mask


def of_faces(find: Callable[[Pixels], Sequence[Box]], margin: float, smallest: int) -> MakeMask:
    """Return a maker of masks: ellipses around faces, with a margin in sizes of the face."""

    def make(pixels: Pixels) -> Pixels:
        mask = np.zeros(pixels.shape[:2], np.uint8)
        for left, top, width, height in find(colours(pixels)):
            if min(width, height) >= smallest:
                middle = round(left + width / 2), round(top + height / 2)
                axes = round(width * (0.5 + margin)), round(height * (0.5 + margin))
                cv2.ellipse(mask, middle, axes, 0, 0, 360, 255, -1)
        return mask

    return make


def of_foreground(find: Callable[[Pixels], Pixels]) -> MakeMask:
    return lambda pixels: find(colours(pixels))


def of_colour(colour: str, tolerance: int) -> MakeMask:
    """Return a maker of masks that leave out a colour, `#rrggbb`."""
    wanted = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)], np.int16)

    def make(pixels: Pixels) -> Pixels:
        apart = np.abs(colours(pixels).astype(np.int16) - wanted).max(axis=2)
        return np.where(apart > tolerance, np.uint8(255), np.uint8(0))

    return make


def of_alpha(pixels: Pixels) -> Pixels:
    """Return the opacity of an image."""
    if pixels.shape[2] == 4:
        return np.ascontiguousarray(pixels[..., 3])
    return np.full(pixels.shape[:2], 255, np.uint8)
