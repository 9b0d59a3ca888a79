"""Sizes of control images: images that a sample is trained with and that the model sees, such as the one to edit."""

import math
from dataclasses import dataclass

from sd_scripts.data.plan.buckets import BucketFit, Extent, Size, fit_into

MULTIPLE = 16
"""Sides of control images are multiples of this; it suits every family so far."""


@dataclass(frozen=True, kw_only=True)
class ControlRules:
    """How the control images of a subset are resized; fields are named like the options."""

    control_resolution: Size | None = None
    no_resize_control: bool = False

    @property
    def follows_sample(self) -> bool:
        """Whether control images get the size of their sample."""
        return not (self.control_resolution or self.no_resize_control)

    def fit(self, image: Size, sample: Extent) -> BucketFit:
        """Return how a control image of size `image` is resized and cropped.

        To the size of its sample; with control_resolution to an area, keeping its aspect ratio; with no_resize_control
        it is only cropped to MULTIPLE, unless its area exceeds control_resolution. Raises ValueError, to
        follow the name of the image, if it is too small for that.
        """
        area = self.control_resolution
        if self.no_resize_control and not (area and math.prod(image) > math.prod(area)):
            width, height = (side - side % MULTIPLE for side in image)
            if not (width and height):
                raise ValueError(f"has {image[0]}x{image[1]} pixels, less than {MULTIPLE}x{MULTIPLE}; leave it off")
            return BucketFit(bucket=Extent(width, height), resized=image, ar_error=width / height - image[0] / image[1])
        return fit_into(Extent(*_of_area(image, math.prod(area))) if area else Extent(*sample.size), image)


def _of_area(image: Size, area: int) -> Size:
    """Return the size of at most `area` that keeps the aspect ratio best, of those about as wide as it should be."""
    aspect = image[0] / image[1]
    about = round(math.sqrt(area * aspect) / MULTIPLE)
    widths = [MULTIPLE * count for count in range(max(1, about - 2), about + 3)]
    sizes = [(width, max(1, area // width // MULTIPLE) * MULTIPLE) for width in widths]
    return min(sizes, key=lambda size: abs(size[0] / size[1] - aspect))
