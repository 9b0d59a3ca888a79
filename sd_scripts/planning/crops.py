"""How much of the images the buckets leave out, per image and in all."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sd_scripts.data.plan.buckets import Buckets
from sd_scripts.data.plan.dataset import DataPlan, Item

LISTED = 100
"""Images of a plan that are listed one by one: a list of thousands would make the plan too large to send."""


@dataclass(frozen=True, kw_only=True)
class Crop:
    """What several images lose: shares of their areas outside their buckets, 0 to 1."""

    mean: float
    worst: float
    file: str
    """The image that loses most."""


@dataclass(frozen=True, kw_only=True)
class CroppedImage:
    """An image that loses a part in its bucket."""

    file: str
    size: str
    bucket: str
    cropped: float
    """The share of its area outside its bucket, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Crops:
    """How much of a run's images is cropped."""

    all: Crop
    ordinary: Crop | None
    """The same without equal_token_buckets; None if it is off."""
    images: tuple[CroppedImage, ...]
    """The images that lose most, at most 100."""


def crops_of(data: DataPlan) -> Crops:
    """Return how much of the training images is cropped."""
    distinct = {(item.path, item.fit.bucket.size): item for item in data.items}.values()  # a clip has many parts
    worst_first = sorted(distinct, key=lambda item: -item.fit.cropped)
    listed = [item for item in worst_first[:LISTED] if item.fit.cropped]
    return Crops(
        all=crop_of(data.items),
        ordinary=_ordinary(data),
        images=tuple(
            CroppedImage(
                file=item.path.name,
                size="x".join(map(str, item.size)),
                bucket=str(item.fit.bucket),
                cropped=round(item.fit.cropped, 4),
            )
            for item in listed
        ),
    )


def crop_of(items: Sequence[Item]) -> Crop:
    """Return how much of these images is cropped; there is at least one."""
    return _crop(items, [item.fit.cropped for item in items])


def _ordinary(data: DataPlan) -> Crop | None:
    """Return how much would be cropped without equal_token_buckets; None if no dataset has it."""
    rules = [dataset.buckets for dataset in data.blueprint.datasets]
    if not any(each.has_equal_tokens for each in rules):
        return None
    buckets = [Buckets(each.ordinary()) for each in rules]
    fits = [item.fit if item.train_resolution else buckets[item.dataset].fit(item.size) for item in data.items]
    return _crop(data.items, [fit.cropped if fit else 0.0 for fit in fits])


def _crop(items: Sequence[Item], cropped: Sequence[float]) -> Crop:
    worst, item = max(zip(cropped, items, strict=True), key=lambda pair: pair[0])
    return Crop(mean=round(statistics.fmean(cropped), 4), worst=round(worst, 4), file=item.path.name)
