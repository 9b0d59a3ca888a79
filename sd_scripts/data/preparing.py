"""Make the pixels of an item: of an image, or of a part of a clip."""

from random import Random

from sd_scripts.data.plan.dataset import Item
from sd_scripts.data.sources.clips import prepare_clip
from sd_scripts.data.sources.images import Pixels, prepare_image


def prepare(item: Item, random: Random, *, has_frames: bool) -> tuple[Pixels, Pixels | None]:
    """Return the pixels of an item in its bucket, not yet flipped, and its mask (H, W), where 255 means full weight.

    Pixels are (H, W, 3); with `has_frames` (F, H, W, 3), where an image is a clip of one frame. Raises UnreadableImage.
    """
    augmentation = item.subset.augmentation
    if item.span is not None:
        return prepare_clip(item.path, item.span.times, item.size, item.mask, item.fit, augmentation, random)
    pixels, mask = prepare_image(item.path, item.mask, item.fit, augmentation, random)
    return pixels[None] if has_frames else pixels, mask
