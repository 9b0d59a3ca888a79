"""Read the masks of a subset: which image has which, and those that are likely mistakes."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.data.plan.blueprint import Subset
from sd_scripts.data.plan.buckets import Size
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.sources.images import UnreadableImage, read_each, read_mask
from sd_scripts.formats.images.mask_files import find_masks
from sd_scripts.formats.words import some

SAME_SHAPE = 0.02
"""Relative tolerance between the aspect ratios of a mask and its image; rounding of sides stays below it."""


@dataclass(frozen=True, kw_only=True)
class MaskFacts:
    """What is known of a mask."""

    size: Size
    is_black: bool

    def fits(self, image: Size) -> bool:
        """Return whether the mask has the shape of its image, whatever their sizes."""
        return is_same_shape(self.size, image)


def is_same_shape(one: Size, other: Size) -> bool:
    return abs(one[0] * other[1] / (one[1] * other[0]) - 1) <= SAME_SHAPE


def required_masks(subset: Subset, folder: str, images: Iterable[Path]) -> dict[Path, Path]:
    """Return the mask of each image. Raises ValueError if one has none."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"conditioning_data_dir: folder not found: {str(root)!r}")
    images = list(images)
    found = find_masks(root, subset.name, images)
    if missing := [path.name for path in images if path not in found]:
        raise ValueError(
            f"conditioning_data_dir: {str(root)!r} has no mask for {some(missing)}; name it like the image"
        )
    return found


def mask_facts(masks: Iterable[Path]) -> dict[Path, MaskFacts | UnreadableImage]:
    """Return the facts of masks, or why one cannot be read; a file that has not changed is read a single time."""
    return dict(read_each(_facts, masks))


def warn_about_masks(masks: Mapping[Path, Size], warn: Warn) -> None:
    """Warn about masks that are likely mistakes; `masks` maps each mask to the size of its image."""
    stretched, black = [], []
    for path, facts in mask_facts(masks).items():
        if isinstance(facts, UnreadableImage):
            continue  # the loader warns when it reads the mask
        if not facts.fits(masks[path]):
            (width, height), size = facts.size, masks[path]
            stretched.append(f"{path.name} ({width}x{height} for {size[0]}x{size[1]})")
        if facts.is_black:
            black.append(path.name)
    of = f"of {len(masks)} masks"
    if stretched:
        warn(
            f"conditioning_data_dir: {len(stretched)} {of} differ in aspect ratio from their image and are stretched "
            f"to fit: {some(stretched)}"
        )
    if black:
        warn(
            f"conditioning_data_dir: {len(black)} {of} are completely black, so these images do not train anything: "
            f"{some(black)}"
        )


def _facts(path: Path) -> MaskFacts:
    try:
        stat = path.stat()
    except OSError as error:
        raise UnreadableImage(path, error) from error
    return _facts_of(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=100_000)
def _facts_of(path: Path, bytes: int, changed: int) -> MaskFacts:
    """Return the facts of a mask in its current version."""
    mask = read_mask(path)
    height, width = mask.shape
    return MaskFacts(size=(width, height), is_black=not mask.any())
