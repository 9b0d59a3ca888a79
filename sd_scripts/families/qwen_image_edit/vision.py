"""Images as the vision tower of Qwen2.5-VL reads them: their size, patches, and the positions of their tokens.

Qwen team, 2025. An image is cut into patches of 14x14 pixels, of which four neighbours become one token.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.sources.images import read_image

PATCH, MERGED, FRAMES = 14, 2, 2
"""Pixels along a patch, patches along a token, and frames of a patch: an image is a video of two equal ones."""
CELL = PATCH * MERGED
MULTIPLE = 32
"""Sides are rounded to it before they are to whole tokens, as diffusers does."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
SMALLEST, LARGEST = 4 * CELL**2, 16384 * CELL**2
"""Pixels of an image."""

Grid = tuple[int, int]
"""Rows and columns of patches."""


def area_size(image: Size, area: int) -> Size:
    """Return the size of about `area` pixels in the shape of an image, sides being multiples of MULTIPLE."""
    width = math.sqrt(area * image[0] / image[1])
    height = width * image[1] / image[0]
    return max(1, round(width / MULTIPLE)) * MULTIPLE, max(1, round(height / MULTIPLE)) * MULTIPLE


def token_size(size: Size) -> Size:
    """Return the size that is nearest and holds whole tokens, neither too few nor too many."""
    cells = [max(1, round(side / CELL)) for side in size]
    pixels = math.prod(cells) * CELL**2
    if pixels > LARGEST:
        shrink = math.sqrt(math.prod(size) / LARGEST)
        cells = [max(1, math.floor(side / shrink / CELL)) for side in size]
    elif pixels < SMALLEST:
        grow = math.sqrt(SMALLEST / math.prod(size))
        cells = [math.ceil(side * grow / CELL) for side in size]
    return cells[0] * CELL, cells[1] * CELL


def patches_of(path: Path, area: int, *, flipped: bool = False) -> tuple[Tensor, Grid]:
    """Read an image at about `area` pixels, `flipped` left to right: return its patches (rows * columns, 1176) float32,
    by token, and its grid.

    Raises UnreadableImage, a ValueError.
    """
    image = Image.fromarray(read_image(path)[0])
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.resize(area_size(image.size, area), Image.Resampling.LANCZOS)
    image = image.resize(token_size(image.size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255  # (3, H, W)
    pixels = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    rows, columns = pixels.shape[1] // PATCH, pixels.shape[2] // PATCH
    cells = pixels.view(3, rows // MERGED, MERGED, PATCH, columns // MERGED, MERGED, PATCH)
    cells = cells.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5).expand(-1, -1, -1, -1, -1, FRAMES, -1, -1)
    return cells.reshape(rows * columns, -1), (rows, columns)


def count_tokens(grid: Grid) -> int:
    return math.prod(grid) // MERGED**2


def positions_of(places: Sequence[int | Grid]) -> Tensor:
    """Return the positions (3, L) int64 on the axes time, row and column of a sequence: numbers of text tokens, and
    grids of images. Text goes on after the longest side of an image."""
    parts, at = [], 0
    for place in places:
        if isinstance(place, int):
            parts.append(torch.arange(at, at + place).expand(3, -1))
            at += place
            continue
        rows, columns = (side // MERGED for side in place)
        row = torch.arange(rows).repeat_interleave(columns)
        parts.append(at + torch.stack((torch.zeros_like(row), row, torch.arange(columns).repeat(rows))))
        at += max(rows, columns)
    return torch.cat(parts, dim=1)
