"""Which size an image is trained at: aspect buckets and the way into them. Sizes are (width, height)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sd_scripts.options.dataset import rounded_side, rounded_steps

Size = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class BucketFit:
    """How one image comes into its bucket: resized to cover it, then cropped."""

    bucket: Size
    resized: Size
    """Size after resizing: at least the bucket in both directions."""
    ar_error: float
    """Aspect ratio of the bucket minus that of the image."""


@dataclass(frozen=True, kw_only=True)
class BucketRules:
    """What a dataset says about its sizes; the names are those of the options."""

    resolution: Size
    enable_bucket: bool = False
    min_bucket_reso: int = 256
    max_bucket_reso: int = 1024
    bucket_reso_steps: int = 64
    bucket_no_upscale: bool = False

    def __post_init__(self) -> None:
        if min(self.resolution) < 1:
            raise ValueError(f"resolution: {self.resolution[0]},{self.resolution[1]} has no area")
        if not self.enable_bucket:
            return
        if self.bucket_reso_steps < 1:
            raise ValueError(f"bucket_reso_steps: {self.bucket_reso_steps} must be at least 1")
        if self.bucket_no_upscale:
            return
        low, high = self.bounds
        if min(self.resolution) < low:
            raise ValueError(f"min_bucket_reso: {low} is more than resolution's shorter side {min(self.resolution)}")
        if max(self.resolution) > high:
            raise ValueError(f"max_bucket_reso: {high} is less than resolution's longer side {max(self.resolution)}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest side, moved outwards to multiples of bucket_reso_steps, of which one is the least."""
        steps = self.bucket_reso_steps
        return max(steps, self.min_bucket_reso // steps * steps), -(-self.max_bucket_reso // steps) * steps

    def rounded(self, multiple: int) -> "BucketRules":
        """The rules that give only sizes which are multiples of what the model family needs."""
        if self.enable_bucket:
            return replace(self, bucket_reso_steps=rounded_steps(self.bucket_reso_steps, multiple))
        width, height = (rounded_side(side, multiple) for side in self.resolution)
        return replace(self, resolution=(width, height))


def bucket_resolutions(rules: BucketRules) -> list[Size]:
    """Every bucket of about the area of `resolution`, sorted; just `resolution` without buckets."""
    if not rules.enable_bucket:
        return [rules.resolution]
    steps, area = rules.bucket_reso_steps, math.prod(rules.resolution)
    low, high = rules.bounds
    square = int(math.sqrt(area) // steps * steps)
    sizes = {(square, square)}
    for side in range(low, high + 1, steps):
        other = min(high, area // side // steps * steps)
        if other >= low:
            sizes |= {(side, other), (other, side)}
    return sorted(sizes)


class Buckets:
    """Chooses the bucket of each image of a dataset."""

    def __init__(self, rules: BucketRules):
        self.rules = rules
        self.sizes = bucket_resolutions(rules)

    def fit(self, image: Size) -> BucketFit | None:
        """How an image of size `image` is brought into its bucket; None if it is smaller than the smallest one."""
        if self.rules.enable_bucket and self.rules.bucket_no_upscale:
            resized = _shrunk(image, math.prod(self.rules.resolution), self.rules.bucket_reso_steps)
            bucket = tuple(side - side % self.rules.bucket_reso_steps for side in resized)
            if not all(bucket):
                return None
            return BucketFit(bucket=bucket, resized=resized, ar_error=_aspect(bucket) - _aspect(image))  # type: ignore[arg-type]
        return fit_into(image if image in self.sizes else self._nearest(image), image)

    def _nearest(self, image: Size) -> Size:
        return min(self.sizes, key=lambda size: abs(_aspect(size) - _aspect(image)))


def fit_into(bucket: Size, image: Size) -> BucketFit:
    """How an image of size `image` covers a bucket."""
    return BucketFit(bucket=bucket, resized=_covering(image, bucket), ar_error=_aspect(bucket) - _aspect(image))


def crop_ltrb(bucket: Size, image: Size) -> tuple[float, float, float, float]:
    """The crop that SDXL is told: left, top, right, bottom of the image letterboxed into its bucket.

    It is not the crop that is made; models are trained with these values, so they stay.
    """
    if _aspect(bucket) > _aspect(image):
        width, height = bucket[1] * _aspect(image), float(bucket[1])
    else:
        width, height = float(bucket[0]), bucket[0] / _aspect(image)
    left, top = (bucket[0] - width) // 2, (bucket[1] - height) // 2
    return left, top, left + width, top + height


def crop_top_left(bucket: Size, image: Size, *, flipped: bool) -> tuple[int, int]:
    """Top and left of the told crop; of a flipped image left is measured from the right edge."""
    left, top, right, _ = crop_ltrb(bucket, image)
    return int(top), int(bucket[0] - right if flipped else left)


def token_counts(sizes: Iterable[Size], patch: int = 16) -> set[int]:
    """How many tokens a transformer sees at each size: what decides its graphs. `patch` is in pixels."""
    return {(width // patch) * (height // patch) for width, height in sizes}


def _aspect(size: Size) -> float:
    return size[0] / size[1]


def _covering(image: Size, bucket: Size) -> Size:
    """`image` scaled to cover `bucket` exactly in one direction, rounded half up."""
    scale = bucket[1] / image[1] if _aspect(image) > _aspect(bucket) else bucket[0] / image[0]
    return int(image[0] * scale + 0.5), int(image[1] * scale + 0.5)


def _shrunk(image: Size, area: int, steps: int) -> Size:
    """`image` brought down to `area` with one side on the grid, the one that keeps the aspect ratio better."""
    if math.prod(image) <= area:
        return image
    aspect = _aspect(image)
    width = math.sqrt(area * aspect)
    by_width, by_height = _on_grid(width, steps), _on_grid(area / width, steps)
    if not by_width or not by_height:
        return int(width + 0.5), int(area / width + 0.5)
    error_by_width = abs(by_width / max(_on_grid(by_width / aspect, steps), 1) - aspect)
    error_by_height = abs(_on_grid(by_height * aspect, steps) / by_height - aspect)
    if error_by_width < error_by_height:
        return by_width, int(by_width / aspect + 0.5)
    return int(by_height * aspect + 0.5), by_height


def _on_grid(side: float, steps: int) -> int:
    rounded = int(side + 0.5)
    return rounded - rounded % steps
