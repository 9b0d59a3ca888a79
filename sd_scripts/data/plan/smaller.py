"""Plans the smaller size at which images are trained at high noise."""

import math
from dataclasses import replace

from sd_scripts.data.plan.buckets import BucketRules, Extent, Size, fit_into
from sd_scripts.data.plan.equal_tokens import equal_token_resolutions, kept
from sd_scripts.data.plan.items import Item


class SmallerSizes:
    """Chooses the smaller size of each bucket: a function of the bucket alone, so that a batch has one size."""

    def __init__(self, rules: BucketRules, resolution: Size, multiple: int):
        """`resolution`: its area is the largest of a smaller size. `multiple`: of their sides."""
        self._area = math.prod(resolution)
        self._multiple = multiple
        self._equal: list[Size] = []
        if rules.has_equal_tokens and self._area < math.prod(rules.resolution):
            square = _scaled(rules.resolution, self._area, multiple)
            self._equal = equal_token_resolutions(square, multiple, (multiple, rules.bounds[1]))

    def of(self, bucket: Extent) -> Extent | None:
        """Return the smaller size of a bucket; None if the bucket is not larger."""
        if math.prod(bucket.size) <= self._area:
            return None
        if self._equal:
            return Extent(*max(self._equal, key=lambda size: kept(size, bucket.width / bucket.height)))
        return Extent(*_scaled(bucket.size, self._area, self._multiple))


def with_smaller(item: Item, sizes: SmallerSizes) -> Item:
    """Return an item with its smaller version, if its bucket is larger."""
    size = sizes.of(item.fit.bucket)
    return replace(item, smaller=_at(item, size)) if size else item


def _at(item: Item, size: Extent) -> Item:
    """Return the item at a smaller size. Control images that have the size of their sample follow it: the model relates
    the two by position. Others stay as they are."""
    controls = item.controls
    if item.subset.controls.follows_sample:
        controls = tuple(replace(control, fit=fit_into(size, control.size)) for control in controls)
    extent = replace(size, controls=tuple(control.fit.bucket.sides for control in controls))
    return replace(item, fit=replace(fit_into(size, item.size), bucket=extent), controls=controls)


def _scaled(size: Size, area: int, multiple: int) -> Size:
    """Return the size of at most `area` that keeps the aspect ratio best, of those about as wide as it should be."""
    aspect = size[0] / size[1]
    about = round(math.sqrt(area * aspect) / multiple)
    widths = [multiple * count for count in range(max(1, about - 2), about + 2)]
    heights = [min(round(width / aspect / multiple), area // width // multiple) for width in widths]
    sizes = [(width, multiple * max(1, height)) for width, height in zip(widths, heights, strict=True)]
    return min(sizes, key=lambda size: (abs(size[0] / size[1] - aspect), -math.prod(size)))
