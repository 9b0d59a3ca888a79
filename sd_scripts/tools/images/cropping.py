"""Crop images: remove bars, crop to faces, crop to the largest area without text."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from sd_scripts.data.sources.images import Pixels
from sd_scripts.dataset_view.looking import bar_share
from sd_scripts.options.images.tools import CropOptions
from sd_scripts.tools.images.pieces import Box, Edited, ImageTool, colours, cropped, whole

SMALLEST = 16
"""Pixels a side of the smallest crop."""
STEP = 16
"""By how much colours change where a bar ends, at least."""
Find = Callable[[Pixels], Sequence[Box]]
"""Returns the boxes of faces or texts in an image (H, W, 3)."""


def without_bars(pixels: Pixels) -> Edited:
    """Remove bars of one colour, black, white or any other, which end at an edge."""
    seen = colours(pixels)
    height, width = seen.shape[:2]
    rows = [seen.transpose(1, 0, 2), seen, seen.transpose(1, 0, 2)[::-1], seen[::-1]]
    left, top, right, bottom = (_bar(each) for each in rows)
    box = left, top, width - left - right, height - top - bottom
    if not any((left, top, right, bottom)) or min(box[2:]) < SMALLEST:
        return whole(pixels)
    return Edited(pieces=[cropped(pixels, box)])


def _bar(rows: Pixels) -> int:
    """Return how many of the first rows are a bar of the first row's colour."""
    colour = np.median(rows[0].reshape(-1, 3), axis=0)
    apart = np.abs(rows.astype(np.int16) - colour.astype(np.int16)).max(axis=2).astype(np.uint8)
    count = int(np.ceil(bar_share(apart) * len(rows)))
    if not count or count + 1 >= len(rows):
        return 0
    fades = np.median(apart[count + 1]) < np.percentile(apart[:count], 95) + STEP
    return 0 if fades else count


def crop_tool(options: CropOptions, find: Find) -> ImageTool:
    """Return the tool that crops to faces, or to the area without text, as `find` finds them."""
    if options.crop_to == "text_free":
        return lambda pixels: without_text(pixels, find(colours(pixels)), options.min_kept)
    return lambda pixels: to_faces(pixels, find(colours(pixels)), options)


def to_faces(pixels: Pixels, faces: Sequence[Box], options: CropOptions) -> Edited:
    """Crop to faces with a margin. An image without a face has no copy."""
    faces = [face for face in faces if min(face[2:]) >= options.min_face]
    if not faces:
        return Edited(note="no face was found")
    match options.faces:
        case "largest":
            faces = [max(faces, key=lambda face: face[2] * face[3])]
        case "all":
            left, top = (min(face[side] for face in faces) for side in (0, 1))
            right, bottom = (max(face[side] + face[side + 2] for face in faces) for side in (0, 1))
            margin = max(max(face[2:]) for face in faces) * options.margin
            return Edited(
                pieces=[
                    cropped(pixels, _around((left, top, right - left, bottom - top), margin, pixels, options.square))
                ]
            )
    boxes = [_around(face, max(face[2:]) * options.margin, pixels, options.square) for face in sorted(faces)]
    return Edited(pieces=[cropped(pixels, box) for box in boxes])


def _around(box: Box, margin: float, pixels: Pixels, is_square: bool) -> Box:
    """Return a box with a margin, within the image; a square is moved inside, and shrunk where it does not fit."""
    sides = [box[2] + 2 * margin, box[3] + 2 * margin]
    limits = pixels.shape[1], pixels.shape[0]
    if is_square:
        sides = [min(max(sides), *limits)] * 2
    place = []
    for start, length, side, limit in zip(box[:2], box[2:], sides, limits, strict=True):
        first = start + length / 2 - side / 2
        if is_square:
            first = min(max(first, 0), limit - side)
        low, high = max(0, round(first)), min(limit, round(first + side))
        place.append((low, max(1, high - low)))
    return place[0][0], place[1][0], place[0][1], place[1][1]


def without_text(pixels: Pixels, texts: Sequence[Box], min_kept: float) -> Edited:
    """Crop to the largest rectangle without text. An image with too little left has no copy."""
    if not texts:
        return whole(pixels)
    height, width = pixels.shape[:2]
    box = largest_free(texts, (width, height))
    share = box[2] * box[3] / (width * height)
    if share < min_kept or min(box[2:]) < SMALLEST:
        return Edited(note=f"only {100 * share:.0f} % of it is without text")
    return Edited(pieces=[cropped(pixels, box)])


def largest_free(boxes: Sequence[Box], size: tuple[int, int]) -> Box:
    """Return the largest rectangle of an area of `size` (width, height) that no box touches; empty if there is none.

    The sides of the boxes cut the area into a grid; in each of its rows, columns that are free for some height make a
    histogram, in which a stack finds the largest rectangle.
    """
    clipped = [_clipped(box, size) for box in boxes]
    xs = sorted({0, size[0], *(side for box in clipped for side in (box[0], box[2]))})
    ys = sorted({0, size[1], *(side for box in clipped for side in (box[1], box[3]))})
    taken = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for left, top, right, bottom in clipped:
        taken[ys.index(top) : ys.index(bottom), xs.index(left) : xs.index(right)] = True
    best = (0, 0, 0, 0)
    tops = [0] * (len(xs) - 1)
    """Where the free part of each column begins."""
    for row, (_, below) in enumerate(pairwise(ys)):
        tops = [below if is_taken else top for top, is_taken in zip(tops, taken[row], strict=True)]
        stack: list[tuple[int, int]] = []  # left side, top of the free part
        for column in range(len(xs)):
            top = tops[column] if column < len(tops) else below
            left = xs[column]
            while stack and stack[-1][1] < top:
                left, higher = stack.pop()
                area = (xs[column] - left) * (below - higher)
                if area > best[2] * best[3]:
                    best = left, higher, xs[column] - left, below - higher
            if not stack or stack[-1][1] > top:
                stack.append((left, top))
    return best


def _clipped(box: Box, size: tuple[int, int]) -> Box:
    """Return left, top, right and bottom of a box within an area."""
    left, top, width, height = box
    return (
        min(max(left, 0), size[0]),
        min(max(top, 0), size[1]),
        min(max(left + width, 0), size[0]),
        min(max(top + height, 0), size[1]),
    )


def grown(box: Box, share: float) -> Box:
    """Return a box with a margin of a share of its shorter side."""
    more = round(min(box[2:]) * share)
    return box[0] - more, box[1] - more, box[2] + 2 * more, box[3] + 2 * more
