"""Plan the data of a run: every image and part of a clip with its bucket, its repeats and its loss weight."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from random import Random

from sd_scripts.data.plan.blueprint import Blueprint, Dataset, Subset, parse_resolution, read_blueprint
from sd_scripts.data.plan.buckets import BucketRules, Buckets, Extent, equal_tokens_need
from sd_scripts.data.plan.counted_warnings import Warn, counted_warnings
from sd_scripts.data.plan.items import Item as Item
from sd_scripts.data.plan.items import ItemPlanner
from sd_scripts.data.plan.smaller import SmallerSizes, with_smaller
from sd_scripts.data.sources.captions import Caption, CaptionRules, whole_captions
from sd_scripts.data.sources.controls import ControlRules
from sd_scripts.data.sources.folders import ImageRecord, read_sizes, read_subset
from sd_scripts.data.sources.images import Augmentation
from sd_scripts.data.sources.reading_progress import Progress, ReadingProgress
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.formats.images.caption_files import UnreadableCaptions
from sd_scripts.formats.words import some
from sd_scripts.machine import garbage_collection
from sd_scripts.options.dataset import AugmentOptions, rounded_side
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.settings.settings import Settings

ReadSubsets = list[tuple[Subset, list[ImageRecord]]]


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """Everything known about a run's data before the first step."""

    blueprint: Blueprint
    items: tuple[Item, ...]
    seed: int
    validation: "DataPlan | None" = None
    """The validation images, each once, without augmentation or random captions; None without validation_split."""
    text_sees_controls: bool = False
    """Whether the text encoders see the control images together with a caption."""
    has_frames: bool = False
    """Whether pixels have an axis of frames, also those of images: for families that are trained on clips."""

    def every_item(self) -> Iterator[Item]:
        """Yield the training images, then the validation images: everything that caches must contain."""
        yield from self.items
        if self.validation:
            yield from self.validation.items

    def every_image(self) -> Iterator[Item]:
        """Yield every item at every size, each followed by its control images: everything the latent cache must
        contain."""
        for item in self.every_item():
            for each in (item, item.smaller) if item.smaller else (item,):
                yield each
                yield from each.controls

    def caption(self, item: Item, text: str, *, flipped: bool = False) -> Caption:
        """Return the text encoders' input for an item, flipped or not, whose processed caption is `text`."""
        if not self.text_sees_controls or not item.controls:
            return Caption(text)
        return Caption(text, tuple(control.path for control in item.controls), flipped)

    def captions(self, item: Item, text: str) -> list[Caption]:
        """Return all that the text encoders may read of an item: with flip_aug its control images both ways."""
        both = [self.caption(item, text)]
        if item.subset.augmentation.flip_aug:
            both.append(self.caption(item, text, flipped=True))
        return list(dict.fromkeys(both))

    def folders(self) -> list[Path]:
        """Return the folders of all images, control images included."""
        return [Path(folder) for folder in sorted({os.path.dirname(item.path) for item in self.every_image()})]

    def whole_captions(self) -> Iterator[tuple[Path, str]]:
        """Yield each image with what its caption becomes if nothing is dropped; with enable_wildcard, each line."""
        by_rules: dict[CaptionRules, list[Item]] = {}
        for item in self.every_item():
            by_rules.setdefault(item.subset.captions, []).append(item)
        for rules, items in by_rules.items():
            for item, texts in zip(items, whole_captions((item.caption for item in items), rules), strict=True):
                yield from ((item.path, text) for text in texts)

    @cached_property
    def groups(self) -> dict[tuple[int, Extent], list[Item]]:
        """The images that may share a batch, keyed and sorted by dataset and bucket."""
        groups: dict[tuple[int, Extent], list[Item]] = {}
        for item in self.items:  # in the order of their indices
            groups.setdefault((item.dataset, item.fit.bucket), []).append(item)
        return dict(sorted(groups.items()))

    def buckets(self) -> dict[Extent, int]:
        """Return the number of images per epoch of each bucket, smallest width first."""
        counts: Counter[Extent] = Counter()
        for item in self.items:
            counts[item.fit.bucket] += item.repeats
        return dict(sorted(counts.items()))

    def smaller_buckets(self) -> dict[tuple[int, Extent], Extent]:
        """Return the smaller size of each dataset and bucket that is trained at one at high noise."""
        smaller = {key: items[0].smaller for key, items in self.groups.items()}
        return {key: item.fit.bucket for key, item in smaller.items() if item}

    @property
    def wants_masks(self) -> bool:
        """Whether batches carry a mask: if any image needs one, all batches do, so that their structure is the same."""
        return any(item.mask is not None or item.masked_by_alpha for item in self.items)


@garbage_collection.paused()
def plan_data(
    settings: Settings,
    card: FamilyCard,
    *,
    seed: int,
    warn: Warn,
    text_sees_controls: bool = False,
    progress: Progress | None = None,
) -> DataPlan:
    """Read the datasets that the settings describe, in the sizes and with the control images that the family needs.
    `text_sees_controls` if its text encoders read them, too.

    `seed` shuffles epochs and, without validation_seed, splits off validation images. ValueError names the option at
    fault; `warn` is called about skipped images, and `progress` with the files that are read.
    """
    with counted_warnings(warn) as warn:
        blueprint = read_blueprint(settings, warn, card.clips)
        datasets = [_rounded(dataset, card, warn) for dataset in blueprint.datasets]
        blueprint = dataclasses.replace(blueprint, datasets=tuple(datasets))
        reading = ReadingProgress(progress)
        training: list[Item] = []
        validation: list[Item] = []
        read = _read(datasets, warn, reading, clips=card.clips is not None)
        for number, (dataset, subsets) in enumerate(zip(datasets, read, strict=True)):
            learned, kept_out = _plan_dataset(number, dataset, subsets, card, seed, warn, len(training))
            training += learned
            validation += kept_out
        if not training and all(dataset.validation_split == 1 for dataset in datasets):
            raise ValueError(
                "validation_split: 1 leaves no images for training; set less than 1 in one of the datasets"
            )
        if not training:
            raise ValueError(f"{blueprint.source}: no images to train on; {_remedy(blueprint)}")
        _check_controls(training, card, blueprint.source)
        _check_control_shapes((*training, *validation), card)
        training = _with_smaller(training, datasets, settings[NoiseOptions].highnoise_resolution, card, warn)
        made = partial(
            DataPlan,
            blueprint=blueprint,
            seed=seed,
            text_sees_controls=text_sees_controls,
            has_frames=card.clips is not None,
        )
        plan = made(items=_numbered(training), validation=made(items=_numbered(validation)) if validation else None)
        if settings[AugmentOptions].masked_loss and not plan.wants_masks:
            warn("masked_loss: has no effect because no image has a mask; set conditioning_data_dir or alpha_mask")
        return plan


def plan_images(
    paths: Sequence[Path], rules: BucketRules, augmentation: Augmentation, card: FamilyCard, *, warn: Warn
) -> DataPlan:
    """Plan images without captions, each once, to encode them ahead of a run; warn about unusable ones."""
    subset = Subset(captions=CaptionRules(), augmentation=augmentation, controls=ControlRules())
    dataset = _rounded(Dataset(buckets=rules, subsets=(subset,)), card, warn)
    sizes = read_sizes(paths, warn, ReadingProgress())
    images = [ImageRecord(path=path, size=size, caption="") for path, size in sizes.items()]
    items = ItemPlanner(dataset=0, buckets=Buckets(dataset.buckets), warn=warn).items(images, subset)
    if not items:
        raise ValueError("train_data_dir: no usable images")
    return DataPlan(
        blueprint=Blueprint(datasets=(dataset,), source="train_data_dir"),
        items=_numbered(items),
        seed=0,
        has_frames=card.clips is not None,
    )


def plan_held_out(blueprint: Blueprint, folder: Path, card: FamilyCard, *, seed: int, warn: Warn) -> DataPlan:
    """Plan the images of a folder for validation only, with the buckets and captions of the blueprint's first dataset.
    Raises ValueError, naming validation_dir, if none is usable."""
    dataset = _rounded(blueprint.datasets[0], card, warn)
    own = dataclasses.replace(
        dataset.subsets[0],
        image_dir=str(folder),
        metadata_file=None,
        conditioning_data_dir=None,
        control_directory=None,
        class_tokens=None,
        is_reg=False,
        cache_info=False,
    )
    subset = _without_randomness(own)
    found = read_subset(subset, warn, ReadingProgress(), clips=card.clips is not None)
    images = _at_multiples(found, dataset, card, warn)
    items = ItemPlanner(dataset=0, buckets=Buckets(dataset.buckets), warn=warn).items(images, subset)
    if not items:
        raise ValueError(f"validation_dir: '{folder}' has no usable images; choose another folder")
    made = partial(DataPlan, blueprint=blueprint, seed=seed, has_frames=card.clips is not None)
    return made(items=(), validation=made(items=_numbered(items)))


def split_validation(
    images: Sequence[ImageRecord], split: float, seed: int
) -> tuple[list[ImageRecord], list[ImageRecord]]:
    """Split images into training and validation, disjoint and deterministic for a seed."""
    order = list(images)
    Random(seed).shuffle(order)
    kept = math.ceil(len(order) * (1 - split))
    return sorted(order[:kept], key=lambda image: image.path), sorted(order[kept:], key=lambda image: image.path)


def balance_regularisation(repeats: Sequence[int], target: int) -> list[int]:
    """Return the repeats of each regularisation image such that their sum matches `target`.

    Surplus images get 0; if there are too few, each gets one more in turn until the counts match.
    """
    if not repeats:
        return []
    balanced = [0] * len(repeats)
    seen = 0
    for index, repeat in enumerate(repeats):
        if seen >= target:
            break
        balanced[index] = repeat
        seen += repeat
    each, more = divmod(max(0, target - seen), len(repeats))
    return [repeat + each + (index < more) for index, repeat in enumerate(balanced)]


def _read(datasets: Sequence[Dataset], warn: Warn, progress: ReadingProgress, *, clips: bool) -> list[ReadSubsets]:
    """Return the images of each subset of each dataset. Raises UnreadableCaptions for the captions of all of them."""
    read: list[ReadSubsets] = []
    problems: dict[Path, str] = {}
    for dataset in datasets:
        read.append([])
        for subset in _used_subsets(dataset, warn):
            try:
                read[-1].append((subset, read_subset(subset, warn, progress, clips=clips)))
            except UnreadableCaptions as error:
                problems |= error.problems
    if problems:
        raise UnreadableCaptions(problems)
    return read


def _plan_dataset(
    number: int, dataset: Dataset, subsets: ReadSubsets, card: FamilyCard, seed: int, warn: Warn, first: int
) -> tuple[list[Item], list[Item]]:
    """Return the images to train on, with indices from `first` on, and those to validate on."""
    planner = ItemPlanner(dataset=number, buckets=Buckets(dataset.buckets), warn=warn)
    learned: list[Item] = []
    kept_out: list[Item] = []
    regularisation: list[Item] = []
    for subset, found in subsets:
        images = _at_multiples(found, dataset, card, warn)
        if not images:
            warn(f"{subset.name}: this folder has no images")
        if subset.is_reg:
            regularisation += planner.items(images, subset, dataset.prior_loss_weight)
            continue
        if dataset.validation_split:
            split_seed = seed if dataset.validation_seed is None else dataset.validation_seed
            images, held = split_validation(images, dataset.validation_split, split_seed)
            kept_out += planner.items(held, _without_randomness(subset))
        learned += planner.items(images, subset, first=first + len(learned))
    balanced = balance_regularisation([item.repeats for item in regularisation], sum(item.repeats for item in learned))
    learned += [
        dataclasses.replace(item, repeats=repeats)
        for item, repeats in zip(regularisation, balanced, strict=True)
        if repeats
    ]
    return learned, kept_out


def _with_smaller(
    items: list[Item], datasets: Sequence[Dataset], resolution: str | None, card: FamilyCard, warn: Warn
) -> list[Item]:
    """Return the items with their versions at highnoise_resolution, if it is set."""
    if not (resolution and card.has("smaller_at_high_noise")):
        return items
    size = parse_resolution(resolution, "highnoise_resolution")
    sizes = [SmallerSizes(dataset.buckets, size, card.token_multiple) for dataset in datasets]
    both = [with_smaller(item, sizes[item.dataset]) for item in items]
    if not any(item.smaller for item in both):
        warn(f"highnoise_resolution: has no effect because no bucket is larger than {size[0]}x{size[1]}; set it lower")
    return both


def _check_controls(items: Sequence[Item], card: FamilyCard, source: str) -> None:
    """Raise ValueError if the images have no control images and the family is trained with them, or the reverse."""
    has_controls = any(item.controls for item in items)
    takes_controls = card.has("control_images") or card.has("control_clips")
    needed = card.needs_controls and card.clips is None  # a variant of a model of clips may need none
    if takes_controls and needed and not has_controls:
        raise ValueError(
            f"{source}: no image has a control image, which {card.title} is trained with; set control_directory to the "
            "folder with one for each image"
        )
    if has_controls and not takes_controls:
        raise ValueError(f"control_directory: {card.title} does not use control images; remove it")


def _check_control_shapes(items: Sequence[Item], card: FamilyCard) -> None:
    for item in items:
        for control in item.controls:
            if why := card.control_problem(control.path, control.size):
                raise ValueError(f"control_directory: {why}")


def _numbered(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(
        item if item.index == index else dataclasses.replace(item, index=index) for index, item in enumerate(items)
    )


def _used_subsets(dataset: Dataset, warn: Warn) -> list[Subset]:
    used: dict[str, Subset] = {}
    for subset in dataset.subsets:
        source = subset.metadata_file or subset.image_dir or ""
        if subset.num_repeats < 1:
            warn(f"num_repeats: {source} is skipped because its num_repeats is {subset.num_repeats}")
        elif source in used:
            warn(f"{source} is listed twice in one dataset; the first entry is used")
        else:
            used[source] = subset
    return list(used.values())


def _without_randomness(subset: Subset) -> Subset:
    """Return the subset for validation, whose loss must be comparable: no randomness, each image once."""
    captions = dataclasses.replace(
        subset.captions,
        shuffle_caption=False,
        caption_dropout_rate=0.0,
        caption_dropout_every_n_epochs=0,
        caption_tag_dropout_rate=0.0,
        token_warmup_step=0,
        templates=subset.captions.templates[:1],
    )
    augmentation = Augmentation(
        resize_interpolation=subset.augmentation.resize_interpolation, alpha_mask=subset.augmentation.alpha_mask
    )
    return dataclasses.replace(subset, num_repeats=1, captions=captions, augmentation=augmentation)


def _rounded(dataset: Dataset, card: FamilyCard, warn: Warn) -> Dataset:
    """Round the sizes of a dataset to sizes that the family can train."""
    before = dataset.buckets
    rules = before.rounded(card.bucket_multiple, card.token_multiple)
    needs = f"a multiple of {card.bucket_multiple}, as {card.title} needs"
    if rules.has_equal_tokens:
        if too_short := equal_tokens_need(rules):
            warn(too_short)
    elif rules.bucket_reso_steps != before.bucket_reso_steps:
        warn(f"bucket_reso_steps: {before.bucket_reso_steps} is rounded up to {rules.bucket_reso_steps}, {needs}")
    elif rules.resolution != before.resolution:
        (width, height), (wide, high) = before.resolution, rules.resolution
        warn(f"resolution: {width},{height} is rounded to {wide},{high}, {needs}")
    return dataclasses.replace(dataset, buckets=rules)


def _at_multiples(images: Sequence[ImageRecord], dataset: Dataset, card: FamilyCard, warn: Warn) -> list[ImageRecord]:
    """Round the train_resolution of images in a metadata file to sizes that the family can train."""
    multiple = dataset.buckets.token_multiple if dataset.buckets.has_equal_tokens else card.bucket_multiple
    fitting = []
    changed = []
    for image in images:
        if image.train_resolution:
            width, height = (rounded_side(side, multiple) for side in image.train_resolution)
            if image.train_resolution != (width, height):
                changed.append(image.path.name)
            image = dataclasses.replace(image, train_resolution=(width, height))
        fitting.append(image)
    if changed:
        warn(
            f"metadata_file: train_resolution of {len(changed)} images is rounded to multiples of {multiple}, "
            f"as {card.title} needs: {some(changed)}"
        )
    return fitting


def _remedy(blueprint: Blueprint) -> str:
    subsets = [subset for dataset in blueprint.datasets for subset in dataset.subsets]
    if not subsets:
        return "describe at least one subset with an image_dir"
    if subsets[0].metadata_file:
        where = "image_dir" if blueprint.from_config else "train_data_dir"
        return f"name the folder of the images of {subsets[0].name} in {where}"
    return f"put images (png, jpg, webp, bmp) into {subsets[0].image_dir!r}"
