"""Cut images by hand: the buckets as frames, how a cut will be trained, and its files. Without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sd_scripts.data.plan.buckets import BucketRules, Buckets, Size, bucket_resolutions
from sd_scripts.data.sources.images import Pixels, read_image, read_mask
from sd_scripts.data.sources.masks import is_same_shape
from sd_scripts.formats.disk import saving

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels of the image."""
COMPRESSION = 4


def frames_of(rules: Sequence[BucketRules]) -> list[list[Size]]:
    """Return the buckets of each dataset: the shapes that training does not crop."""
    return [bucket_resolutions(each) for each in rules]


def fits_of(rules: BucketRules, sizes: Sequence[Size]) -> list[dict[str, Any] | None]:
    """Return for each size how training would fit an image of it: its `bucket`, the size it is `resized` to and the
    share that is `cropped`; None if it is too small for any bucket."""
    buckets = Buckets(rules)
    return [
        {"bucket": fit.bucket.size, "resized": fit.resized, "cropped": fit.cropped} if fit else None
        for fit in map(buckets.fit, sizes)
    ]


def cut(image: Path, box: Box, target: Path) -> Size:
    """Write the part of an image within a box as a PNG, with the colours that training reads, and return the size of
    the image. Raises UnreadableImage, NotWritten, and ValueError for a box outside of it."""
    pixels, opacity = read_image(image, alpha=True)
    assert opacity is not None
    height, width = opacity.shape
    if box == (0, 0, width, height):
        raise ValueError("box: the frame is the whole image, so nothing would be cut away; make it smaller")
    part = _within(pixels if opacity.all() and opacity.min() == 255 else np.dstack([pixels, opacity]), box)
    _write(part, target)
    return width, height


def cut_along(file: Path, box: Box, of: Size, target: Path, *, is_mask: bool) -> bool:
    """Write the same part of a mask or control image of an image of size `of`; return whether it has its shape. One
    that has not is left as it is."""
    if is_mask:
        pixels = read_mask(file)
    else:
        colours, opacity = read_image(file, alpha=True)
        pixels = colours if opacity is None or opacity.min() == 255 else np.dstack([colours, opacity])
    height, width = pixels.shape[:2]
    if not is_same_shape((width, height), of):
        return False
    across, down = width / of[0], height / of[1]
    left, top = min(round(box[0] * across), width - 1), min(round(box[1] * down), height - 1)
    wide = max(1, min(round(box[2] * across), width - left))
    high = max(1, min(round(box[3] * down), height - top))
    _write(_within(pixels, (left, top, wide, high)), target)
    return True


def _within(pixels: Pixels, box: Box) -> Pixels:
    left, top, wide, high = box
    height, width = pixels.shape[:2]
    if min(left, top) < 0 or min(wide, high) < 1 or left + wide > width or top + high > height:
        raise ValueError(f"box: {wide} × {high} at {left}, {top} is not within the image of {width} × {height} pixels")
    return pixels[top : top + high, left : left + wide]


def _write(pixels: Pixels, target: Path) -> None:
    if pixels.ndim == 3:
        code = cv2.COLOR_RGB2BGR if pixels.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        pixels = cv2.cvtColor(pixels, code).astype(np.uint8, copy=False)
    _, encoded = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, COMPRESSION])
    with saving(target):
        target.write_bytes(encoded.tobytes())
