"""Give masks to the page that paints on them, and make the files of what it painted. Without torch.

Pixels travel as the page holds them: a byte each, row by row, deflated. No image of a browser is parsed.
"""

import base64
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.sources.images import Pixels, read_mask
from sd_scripts.dataset_view.looking import shrunk

EDITED_SIDE = 2048
"""Longer side at which masks are painted: more than any bucket, and smooth on a phone."""
TINT_SIDE = 640
FULL = 255


def mask_to_edit(path: Path) -> dict[str, Any]:
    """Return a mask for the page: `width` and `height`, at most 2,048, its `pixels`, and the `size` of the file.
    Raises UnreadableImage."""
    mask = read_mask(path)
    height, width = mask.shape
    return {**sent(shrunk(mask, EDITED_SIDE)), "size": [width, height]}


def sent(pixels: Pixels) -> dict[str, Any]:
    """Return a mask (H, W) as the page reads it."""
    height, width = pixels.shape
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(pixels).tobytes(), 1)).decode()
    return {"width": width, "height": height, "pixels": packed}


def received(width: int, height: int, packed: str) -> Pixels:
    """Return the mask (H, W) that the page sent. Raises ValueError, one sentence."""
    if not (0 < width <= EDITED_SIDE and 0 < height <= EDITED_SIDE):
        raise ValueError(f"mask: must have 1 to {EDITED_SIDE:,} pixels each way")
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.b64decode(packed, validate=True), width * height + 1)
    except (ValueError, zlib.error):
        content = b""
    if len(content) != width * height:
        raise ValueError(f"mask: its pixels are not {width} × {height}; reload the page")
    return np.frombuffer(content, np.uint8).reshape(height, width)


def mask_file(pixels: Pixels, size: Size) -> bytes:
    """Return the PNG of a mask at the size of its image, as other trainers want it too. One that is all black or all
    white takes a bit per pixel."""
    if pixels.min() == pixels.max() and pixels.min() in (0, FULL):
        return plain_mask(size, int(pixels.min()))
    height, width = pixels.shape
    if (width, height) != size:
        shrinks = width >= size[0] and height >= size[1]
        filter = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        pixels = cv2.resize(pixels, size, interpolation=filter).astype(np.uint8, copy=False)
    return _png(pixels)


def plain_mask(size: Size, value: int = FULL) -> bytes:
    """Return the PNG of a mask that has the same value, 0 or 255, everywhere."""
    return _png(np.full((size[1], size[0]), value, np.uint8), cv2.IMWRITE_PNG_BILEVEL, 1)


def _png(pixels: Pixels, *how: int) -> bytes:
    # runs of equal bytes: smaller than what is usual for images, and three times as fast
    _, encoded = cv2.imencode(".png", pixels, how or (cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE))
    return encoded.tobytes()


def tint(path: Path) -> bytes:
    """Return a PNG that is opaque where a mask leaves an image out, at most 640 pixels long, to colour it with. Raises
    UnreadableImage."""
    mask = shrunk(read_mask(path), TINT_SIDE)
    opaque = np.zeros((*mask.shape, 4), np.uint8)
    opaque[..., 3] = FULL - mask
    return _png(opaque)
