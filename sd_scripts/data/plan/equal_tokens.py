"""Choose bucket resolutions that all have the same number of tokens, so that they share compiled graphs.

The choice depends on the options alone, never on the images: one more image must not give all others new buckets and
make their cached latents stale.
"""

import math
from collections.abc import Iterable, Sequence

Sides = tuple[int, int]

ASPECT_RATIOS = tuple(ratio for long in (1, 5 / 4, 4 / 3, 3 / 2, 16 / 9, 2) for ratio in (long, 1 / long))
"""Width / height of common images; 1:1 is as frequent as each of the others in both directions."""
LEAST_USED = 3 / 4
"""Smallest area of a bucket, as a share of the resolution's area."""
MOST_CROPPED = 1 / 16
"""Largest share that images with the aspect ratio of the resolution may lose."""


def equal_token_resolutions(resolution: Sides, grid: int, bounds: Sides) -> list[Sides]:
    """Return all resolutions (width, height) of one area, sorted: sides are multiples of `grid` within `bounds`.

    Of all areas up to the area of `resolution` this is the one that loses least: the share cropped of images of common
    aspect ratios, plus the share of the resolution's area that is not used. A bucket nearly has the aspect ratio of
    `resolution`, if there is such an area.
    """
    most = max(1, math.prod(resolution) // grid**2)
    low, high = (side // grid for side in bounds)
    by_area = _by_area(math.ceil(LEAST_USED * most), most, low, high) or _by_area(1, most, low, high)
    wanted = resolution[0] / resolution[1]
    fitting = {area: sizes for area, sizes in by_area.items() if _cropped(sizes, wanted) <= MOST_CROPPED}
    best = min((fitting or by_area).items(), key=lambda found: (_loss(found[1]) - found[0] / most, -found[0]))
    return sorted((width * grid, height * grid) for width, height in best[1])


def kept(bucket: Sides, aspect: float) -> float:
    """Return the share of an image with this width / height that is left when it is cropped to `bucket`."""
    ratio = bucket[0] / bucket[1] / aspect
    return min(ratio, 1 / ratio)


def _by_area(least: int, most: int, low: int, high: int) -> dict[int, list[Sides]]:
    """Return the sizes of each area from `least` to `most`, in cells of the grid."""
    found: dict[int, list[Sides]] = {}
    for width in range(low, high + 1):
        for height in range(max(low, -(-least // width)), min(high, most // width) + 1):
            found.setdefault(width * height, []).append((width, height))
    return found


def _loss(sizes: Sequence[Sides]) -> float:
    """Return the mean share that images of the common aspect ratios lose."""
    return sum(_cropped(sizes, aspect) for aspect in ASPECT_RATIOS) / len(ASPECT_RATIOS)


def _cropped(sizes: Iterable[Sides], aspect: float) -> float:
    return 1 - max(kept(size, aspect) for size in sizes)
