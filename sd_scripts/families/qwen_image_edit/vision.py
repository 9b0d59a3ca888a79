"""Images as the vision tower of Qwen2.5-VL reads them: their size, patches, and the positions of their tokens.

Qwen team, 2025. An image is cut into patches of 14x14 pixels, four neighbours of which become one token.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.sources.images import read_image
from sd_scripts.families.qwen_image_edit.card import CARD

MERGED = 2
"""Patches along a token."""
PROCESSOR = Qwen2VLImageProcessorPil(size={"shortest_edge": 56**2, "longest_edge": 16384 * 28**2})
"""Of Qwen2.5-VL; its sizes are the least and the most pixels of an image."""
MULTIPLE = 32
"""Sides are rounded to it before they are to whole tokens, as diffusers does."""

Grid = tuple[int, int]
"""Rows and columns of patches."""


def area_size(image: Size, area: int) -> Size:
    """Return the size of about `area` pixels in the shape of an image, sides being multiples of MULTIPLE."""
    width = math.sqrt(area * image[0] / image[1])
    height = width * image[1] / image[0]
    return max(1, round(width / MULTIPLE)) * MULTIPLE, max(1, round(height / MULTIPLE)) * MULTIPLE


def patches_of(path: Path, area: int, *, flipped: bool = False) -> tuple[Tensor, Grid]:
    """Read an image at about `area` pixels, `flipped` left to right: return its patches (rows * columns, 1176) float32,
    by token, and its grid.

    Raises ValueError if the image cannot be read or is too elongated.
    """
    image = Image.fromarray(read_image(path)[0])
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    size = area_size(image.size, area)
    if why := CARD.control_problem(path, size):
        raise ValueError(f"control_directory, control_image_path: {why}")
    image = image.resize(size, Image.Resampling.LANCZOS)
    features = PROCESSOR([image], return_tensors="pt")
    _, rows, columns = features["image_grid_thw"][0].tolist()
    return features["pixel_values"], (rows, columns)


def count_tokens(grid: Grid) -> int:
    return math.prod(grid) // MERGED**2


def positions_of(places: Sequence[int | Grid]) -> Tensor:
    """Return the positions (3, L) int64 on the axes time, row and column of a sequence: numbers of text tokens, and
    grids of images. Text continues after the longest side of an image."""
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
