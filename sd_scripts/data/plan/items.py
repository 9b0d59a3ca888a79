"""Makes the items of a dataset: each image, and each part of a clip, with its bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.data.plan.blueprint import Subset
from sd_scripts.data.plan.buckets import BucketFit, Buckets, Extent, fit_into
from sd_scripts.data.plan.clip_warnings import warn_about_clips
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.sources.folders import ImageRecord
from sd_scripts.data.sources.images import Augmentation, is_too_elongated
from sd_scripts.formats.clips.probe import Probe
from sd_scripts.formats.clips.spans import Span, spans, trained_times
from sd_scripts.formats.words import counted, some
from sd_scripts.options.dataset import VARY_IMAGES


@dataclass(frozen=True, kw_only=True)
class Item(ImageRecord):
    """One image, or one part of a clip, in one dataset."""

    index: int
    """Its index in the plan; part of the seed of its random draws."""
    fit: BucketFit
    dataset: int
    subset: Subset
    repeats: int
    """Repeats per epoch."""
    loss_weight: float
    controls: tuple[Item, ...] = ()
    span: Span | None = None
    """The frames of a clip; None: it is an image."""
    smaller: Item | None = None
    """The same image at highnoise_resolution; None: it is trained at one size."""

    @property
    def source(self) -> tuple[Path, Span | None]:
        """What its pixels are decoded from."""
        return self.path, self.span

    def at(self, *, high_noise: bool | None) -> Item:
        """Return the item as it is trained at high noise or otherwise."""
        return self.smaller if high_noise and self.smaller else self

    @property
    def masked_by_alpha(self) -> bool:
        """Whether the opacity of the image is its mask."""
        return self.mask is None and self.subset.augmentation.alpha_mask


@dataclass(frozen=True, kw_only=True)
class ItemPlanner:
    """Makes the items of a dataset, which is the `dataset`-th of its run."""

    dataset: int
    buckets: Buckets
    warn: Warn

    def items(
        self, images: Sequence[ImageRecord], subset: Subset, weight: float = 1.0, *, first: int = 0
    ) -> list[Item]:
        """Return the items of a subset's images and clips, with indices from `first` on."""
        images = self._long_enough(images, subset)
        fits = [(image, fit) for image in images if (fit := self._fit(image))]
        parts = (
            (image, fit, span)
            for image, fit in fits
            for span in (spans(image.clip, subset.clips) if image.clip else [None])
        )
        items = [
            _with_controls(
                Item(
                    **vars(image) | {"controls": (), "clip": None},
                    index=index,
                    fit=_with_frames(fit, span),
                    dataset=self.dataset,
                    subset=subset,
                    repeats=subset.num_repeats,
                    loss_weight=weight,
                    span=span,
                ),
                image.controls,
            )
            for index, (image, fit, span) in enumerate(parts, first)
        ]
        self._warn_about_fits(images, fits, subset)
        if clips := {image.path.name: image.clip for image, _ in fits if image.clip}:
            warn_about_clips(clips, subset, self.warn)
        return items

    def _long_enough(self, images: Sequence[ImageRecord], subset: Subset) -> Sequence[ImageRecord]:
        """Return the clips alone, if the family is trained on clips of a least length."""
        shortest = subset.clips.shortest
        if shortest == 1:
            return images
        if still := [image.path.name for image in images if not image.clip]:
            verb = "is" if len(still) == 1 else "are"
            self.warn(
                f"{counted(len(still), 'image')} in {subset.name!r} {verb} skipped, since this model is trained on "
                f"clips of at least {shortest} frames: {some(still)}"
            )
        return [image for image in images if image.clip]

    def _fit(self, image: ImageRecord) -> BucketFit | None:
        """Return how an image is resized; None, after a warning, if it is too small."""
        fit = self.buckets.fit(image.size)
        wanted = image.train_resolution
        if wanted and (fit is None or fit.bucket.size != wanted):
            return fit_into(Extent(*wanted), image.size)
        if fit is None:
            self.warn(f"{image.path} is smaller than bucket_reso_steps and bucket_no_upscale is on; it is skipped")
        return fit

    def _warn_about_fits(
        self, images: Sequence[ImageRecord], fits: Sequence[tuple[ImageRecord, BucketFit]], subset: Subset
    ) -> None:
        rules = self.buckets.rules
        if long := [f"{i.path.name} ({i.size[0]}x{i.size[1]})" for i, fit in fits if is_too_elongated(fit)]:
            remedy = "crop them" if rules.enable_bucket else "turn on enable_bucket, or crop them"
            self.warn(
                f"{len(long)} of {len(images)} images in {subset.name!r} are so elongated that less than a sixteenth "
                f"of each fits its bucket; {remedy}: {some(long)}"
            )
        if own := sum(self.buckets.fit(image.size) != fit for image, fit in fits):
            self.warn(f"resolution: {own} images of {subset.name} are trained at their train_resolution")
        if rules.has_equal_tokens and (strays := sum(fit.bucket.size not in self.buckets.sizes for _, fit in fits)):
            self.warn(
                f"equal_token_buckets: the train_resolution of {counted(strays, 'image')} in {subset.name!r} has a "
                "different number of tokens; prepare the metadata file with equal_token_buckets too"
            )


def _with_frames(fit: BucketFit, span: Span | None) -> BucketFit:
    if span is None:
        return fit
    return dataclasses.replace(fit, bucket=dataclasses.replace(fit.bucket, frames=span.frames))


def _with_controls(item: Item, controls: Sequence[ImageRecord]) -> Item:
    """Return an item with its control images and clips, whose sizes become part of its bucket. They are flipped like it
    and changed in no other way."""
    if not controls:
        return item
    own = item.subset.augmentation
    if varied := [name for name in VARY_IMAGES if getattr(own, name)]:
        raise ValueError(f"{varied[0]}: changes an image and not its control images; turn it off")
    plain = Augmentation(flip_aug=own.flip_aug, resize_interpolation=own.resize_interpolation)
    subset = dataclasses.replace(item.subset, augmentation=plain)
    made = [_control(item, control, subset) for control in controls]
    extent = dataclasses.replace(item.fit.bucket, controls=tuple(each.fit.bucket.sides for each in made))
    return dataclasses.replace(item, fit=dataclasses.replace(item.fit, bucket=extent), controls=tuple(made))


def _control(item: Item, control: ImageRecord, subset: Subset) -> Item:
    try:
        fit = item.subset.controls.fit(control.size, item.fit.bucket)
    except ValueError as error:
        raise ValueError(f"no_resize_control: the control image '{control.path}' {error}") from error
    span = _control_span(item, control.clip)
    return dataclasses.replace(
        item,
        path=control.path,
        size=control.size,
        fit=_with_frames(fit, span),
        subset=subset,
        mask=None,
        span=span,
    )


def _control_span(item: Item, clip: Probe | None) -> Span | None:
    """Return the frames of a control clip that belong to those of its item: a shorter one repeats its last frame."""
    if clip is None:
        return None
    times = trained_times(clip, item.subset.clips)
    start, frames = (item.span.start, item.span.frames) if item.span else (0, 1)
    return Span(start=start, times=tuple(times[min(place, len(times) - 1)] for place in range(start, start + frames)))
