"""Assign images to aspect-ratio buckets, with their resize and crop. Sizes are (width, height)."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from sd_scripts.data.plan.equal_tokens import equal_token_resolutions, kept
from sd_scripts.formats.words import counted
from sd_scripts.options.dataset import NO_SMALL_BUCKETS, SIDE_MULTIPLE, rounded_side, rounded_steps

Size = tuple[int, int]
Sides = tuple[int, ...]
"""Width and height of an image; of a clip also its frames."""


@dataclass(frozen=True, order=True)
class Extent:
    """The extent of a sample in pixels and frames."""

    width: int
    height: int
    frames: int = 1
    """Frames of a clip; 1 for an image."""
    controls: tuple[Sides, ...] = ()
    """Sides of the control images and clips, in order: samples of a batch have the same number and sizes."""

    def __str__(self) -> str:
        return "+".join("x".join(map(str, each)) for each in (self.sides, *self.controls))

    @classmethod
    def parse(cls, text: str) -> "Extent":
        """Return the extent that a text such as 832x480x81 or 1024x1024+512x512 describes."""
        (width, height, *frames), *controls = ([int(side) for side in part.split("x")] for part in text.split("+"))
        return cls(width, height, frames[0] if frames else 1, tuple(tuple(sides) for sides in controls))

    @property
    def alone(self) -> "Extent":
        """The sample without its control images."""
        return Extent(self.width, self.height, self.frames)

    @property
    def parts(self) -> "tuple[Extent, ...]":
        """The sample itself and its control images, each as an extent of its own."""
        return self.alone, *(Extent(sides[0], sides[1], math.prod(sides[2:])) for sides in self.controls)

    @property
    def pixels(self) -> int:
        """The pixels of all parts and frames."""
        return sum(part.width * part.height * part.frames for part in self.parts)

    @property
    def size(self) -> Size:
        return self.width, self.height

    @property
    def sides(self) -> Sides:
        """Width and height, and of a clip its frames."""
        return self.size if self.frames == 1 else (*self.size, self.frames)


@dataclass(frozen=True, kw_only=True)
class BucketFit:
    """How one image is resized to cover its bucket before it is cropped."""

    bucket: Extent
    resized: Size
    """Size after resizing: at least the bucket in both directions."""
    ar_error: float
    """Aspect ratio of the bucket minus the image's."""

    @cached_property
    def cropped(self) -> float:
        """The share of the image's area outside its bucket, 0 to 1."""
        return 1 - math.prod(self.bucket.size) / math.prod(self.resized)


@dataclass(frozen=True, kw_only=True)
class BucketRules:
    """A dataset's resolution and bucket options; fields are named like the options."""

    resolution: Size
    enable_bucket: bool = False
    min_bucket_reso: int = 256
    max_bucket_reso: int = 1024
    bucket_reso_steps: int = 64
    bucket_no_upscale: bool = False
    equal_token_buckets: bool = False
    token_multiple: int = SIDE_MULTIPLE
    """Multiple of the sides with equal_token_buckets, instead of bucket_reso_steps: the smallest that the family can
    train, since few sizes of a coarse grid have the same area."""
    follow_area: bool = False
    """Whether the sides follow from the area alone, as in musubi-tuner: from half the side of a square of this area
    on. min_bucket_reso and max_bucket_reso then limit them only where they are set; 0: unset."""

    def __post_init__(self) -> None:
        if min(self.resolution) < 1:
            raise ValueError(f"resolution: both sides of {self.resolution[0]},{self.resolution[1]} must be at least 1")
        if not self.enable_bucket:
            return
        if self.bucket_reso_steps < 1:
            raise ValueError(f"bucket_reso_steps: {self.bucket_reso_steps} must be at least 1")
        if self.equal_token_buckets and self.bucket_no_upscale:
            raise ValueError(f"bucket_no_upscale: {NO_SMALL_BUCKETS}")
        if self.bucket_no_upscale:
            return
        low, high = self.bounds
        if self.min_bucket_reso and min(self.resolution) < low:
            raise ValueError(f"min_bucket_reso: {low} is larger than resolution's shorter side {min(self.resolution)}")
        if max(self.resolution) > high:
            raise ValueError(f"max_bucket_reso: {high} is smaller than resolution's longer side {max(self.resolution)}")

    @property
    def has_equal_tokens(self) -> bool:
        """Whether all buckets have the same number of tokens."""
        return self.enable_bucket and self.equal_token_buckets

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the smallest and largest side, rounded outwards to positive multiples of the grid."""
        steps = self.token_multiple if self.has_equal_tokens else self.bucket_reso_steps
        high = self.max_bucket_reso or math.prod(self.resolution)
        return max(steps, self.min_bucket_reso // steps * steps), -(-high // steps) * steps

    def rounded(self, multiple: int, token_multiple: int | None = None) -> "BucketRules":
        """Return these rules adjusted so that all sizes are multiples of `multiple`, as the model family needs; those
        with equal tokens of `token_multiple`, which may be smaller."""
        if self.enable_bucket:
            steps = rounded_steps(self.bucket_reso_steps, multiple)
            return replace(self, bucket_reso_steps=steps, token_multiple=token_multiple or multiple)
        width, height = (rounded_side(side, multiple) for side in self.resolution)
        return replace(self, resolution=(width, height))

    def ordinary(self) -> "BucketRules":
        """Return these rules without equal_token_buckets."""
        return replace(self, equal_token_buckets=False)


def bucket_resolutions(rules: BucketRules) -> list[Size]:
    """Return every bucket of at most the area of `resolution`, sorted; only `resolution` if buckets are off."""
    if not rules.enable_bucket:
        return [rules.resolution]
    if rules.has_equal_tokens:
        return equal_token_resolutions(rules.resolution, rules.token_multiple, rules.bounds)
    steps = rules.bucket_reso_steps
    area = math.prod(rules.resolution)
    low, high = rules.bounds
    if rules.follow_area:
        return _of_area(area, steps, low, high)
    square = int(math.sqrt(area) // steps * steps)
    sizes = {(square, square)}
    for side in range(low, high + 1, steps):
        other = min(high, area // side // steps * steps)
        if other >= low:
            sizes |= {(side, other), (other, side)}
    return sorted(sizes)


def _of_area(area: int, steps: int, low: int, high: int) -> list[Size]:
    """Return the sizes of at most this area from half the side of its square on, both ways; there is one at least."""
    square = math.isqrt(area)
    sizes: set[Size] = set()
    for side in range(max(steps, square // 2 // steps * steps), square + steps, steps):
        other = area // side // steps * steps
        if low <= min(side, other) and max(side, other) <= high:
            sizes |= {(side, other), (other, side)}
    return sorted(sizes) or [(low, low)]


def equal_tokens_need(rules: BucketRules) -> str | None:
    """Return advice on the bounds of buckets with equal tokens if they exclude images of 2:1; None if they suffice."""
    area = math.prod(rules.resolution)
    short, long = rules.bounds
    found = f"leaves {counted(len(bucket_resolutions(rules)), 'size')} with this number of tokens"
    if long**2 < 2 * area:
        return f"max_bucket_reso: {rules.max_bucket_reso} {found}, so images are cropped; raise it to {2 * long}"
    if short**2 * 2 > area:
        return f"min_bucket_reso: {rules.min_bucket_reso} {found}, so images are cropped; lower it to {short // 2}"
    return None


class Buckets:
    """Chooses the bucket of each image of a dataset."""

    def __init__(self, rules: BucketRules):
        self.rules = rules
        self.sizes = bucket_resolutions(rules)
        self._fits: dict[Size, BucketFit | None] = {}

    def fit(self, image: Size) -> BucketFit | None:
        """Return how an image of size `image` fits its bucket; None if it is smaller than the smallest bucket."""
        if image not in self._fits:  # of many images most have a size of few
            self._fits[image] = self._fit(image)
        return self._fits[image]

    def _fit(self, image: Size) -> BucketFit | None:
        if self.rules.enable_bucket and self.rules.bucket_no_upscale and self.rules.follow_area:
            return self._of_small(image)
        if self.rules.enable_bucket and self.rules.bucket_no_upscale:
            resized = _shrunk(image, math.prod(self.rules.resolution), self.rules.bucket_reso_steps)
            width, height = (side - side % self.rules.bucket_reso_steps for side in resized)
            if not width or not height:
                return None
            return BucketFit(bucket=Extent(width, height), resized=resized, ar_error=width / height - _aspect(image))
        return fit_into(Extent(*(image if image in self.sizes else self._nearest(image))), image)

    def _of_small(self, image: Size) -> BucketFit | None:
        """Return the fit of an image that is not enlarged: to its own size if it has no larger area."""
        if math.prod(image) > math.prod(self.rules.resolution):
            return fit_into(Extent(*self._nearest(image)), image)
        width, height = (side - side % self.rules.bucket_reso_steps for side in image)
        return fit_into(Extent(width, height), image) if width and height else None

    def _nearest(self, image: Size) -> Size:
        if self.rules.has_equal_tokens:
            return max(self.sizes, key=lambda size: kept(size, _aspect(image)))
        return min(self.sizes, key=lambda size: abs(_aspect(size) - _aspect(image)))


def fit_into(bucket: Extent, image: Size) -> BucketFit:
    """Return how an image of size `image` covers `bucket`."""
    resized = _covering(image, bucket.size)
    return BucketFit(bucket=bucket, resized=resized, ar_error=_aspect(bucket.size) - _aspect(image))


def crop_ltrb(bucket: Size, image: Size) -> tuple[float, float, float, float]:
    """Return the crop conditioning: left, top, right, bottom of the image letterboxed into its bucket.

    This is not the actual crop; existing models are trained with these values, so we keep them.
    """
    if _aspect(bucket) > _aspect(image):
        width, height = bucket[1] * _aspect(image), float(bucket[1])
    else:
        width, height = float(bucket[0]), bucket[0] / _aspect(image)
    left, top = (bucket[0] - width) // 2, (bucket[1] - height) // 2
    return left, top, left + width, top + height


def _aspect(size: Size) -> float:
    return size[0] / size[1]


def _covering(image: Size, bucket: Size) -> Size:
    """Scale `image` to cover `bucket` exactly in one direction, rounding half up."""
    scale = bucket[1] / image[1] if _aspect(image) > _aspect(bucket) else bucket[0] / image[0]
    return int(image[0] * scale + 0.5), int(image[1] * scale + 0.5)


def _shrunk(image: Size, area: int, steps: int) -> Size:
    """Shrink `image` to `area` with one side on the grid: the side that preserves the aspect ratio better."""
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
