"""Describe the dataset of a run image by image, as training will read it, without torch.

Buckets, resizes, crops, repeats and captions come from the plan of the run. What the plan leaves out is listed with
the reason; without a plan all images are, and where possible with their buckets.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from sd_scripts.data.plan.blueprint import Blueprint, Subset, read_blueprint
from sd_scripts.data.plan.buckets import BucketFit, BucketRules, Extent, Size
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.plan.dataset import DataPlan, plan_data, plan_images
from sd_scripts.data.plan.epochs import ShortBatches, batch_shapes
from sd_scripts.data.plan.items import Item
from sd_scripts.data.sources.images import Augmentation, UnreadableImage, is_too_elongated, place_of
from sd_scripts.data.sources.masks import MaskFacts, mask_facts
from sd_scripts.dataset_view.crops import frames_of
from sd_scripts.dataset_view.folder_files import NO_PLUGIN, NOT_READ, FolderFiles, files_of, folders_below, why_left_out
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.images.mask_files import find_masks, usual_root
from sd_scripts.machine import garbage_collection
from sd_scripts.machine.thumbnail_store import image_key
from sd_scripts.options.dataset import VARY_IMAGES, CaptionOptions, DatasetOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.planning.show import require_plannable
from sd_scripts.planning.steps import TrainPlan, plan_training
from sd_scripts.settings.launching.accelerate_command import processes_of
from sd_scripts.settings.settings import Settings

USUAL_RESOLUTION = "1024"
"""Shown where none is set yet."""


@dataclass(frozen=True, kw_only=True)
class ShownImage:
    """An image of the dataset; sizes are (width, height)."""

    key: str
    """Of its thumbnail and measurements."""
    path: str
    size: tuple[int, int] | None = None
    """None: it cannot be read."""
    bytes: int = 0
    role: str
    """`trained`, `regularisation`, `validation`, or `left out`."""
    why: str = ""
    """Why it is left out."""
    is_foreign: bool = False
    """Whether it is left out for its format, which the image tools convert."""
    dataset: int = 0
    frames: int = 0
    """Of a part of a clip; 0: it is an image."""
    bucket: str = ""
    """Empty: not known."""
    smaller: str = ""
    """Its size at high noise; empty: the same."""
    resized: tuple[int, int] | None = None
    crop: tuple[float, float, float, float] | None = None
    """Left, top, width and height of what training sees, as shares of the image; without random crops."""
    varies: tuple[str, ...] = ()
    """Options that change the image in every step."""
    is_elongated: bool = False
    """Whether less than a sixteenth of it fits its bucket."""
    repeats: int = 0
    caption: str = ""
    """As written, before the caption pipeline; the class tokens of an image without a caption file."""
    captioned: bool = False
    """Whether it has a caption file, or a caption in the metadata file."""
    mask: bool = False
    """Whether training uses a mask for it."""
    mask_key: str = ""
    """Of its mask file, used or not; empty without one."""
    mask_path: str = ""
    mask_problem: Literal["", "differs", "black", "broken"] = ""
    """What is likely wrong with that file: a different shape than the image, nothing to train, not readable."""
    controls: int = 0
    cached: bool = False
    """Whether a file of cached latents is next to it."""
    links: tuple[str, ...] = ()
    """Where its file and its caption file really are, if they are links."""


@dataclass(kw_only=True)
class View:
    """What is known of a dataset."""

    settings: Settings
    plan: DataPlan | None = None
    warnings: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why there is no plan."""

    @property
    def processes(self) -> int:
        return processes_of(self.settings.get(LaunchOptions), self.settings.get(SlurmOptions))

    def blueprint(self) -> Blueprint | None:
        """Return the datasets, planned or not; None if they cannot be read."""
        try:
            return self.plan.blueprint if self.plan else read_blueprint(self.settings, lambda _: None)
        except (ValueError, OSError, AssertionError):
            return None

    def length(self, plan: DataPlan) -> TrainPlan:
        """Return the length of the run."""
        shapes = batch_shapes(plan, short_batches=self.settings[DatasetOptions].short_batches)
        return plan_training(self.settings[TrainingOptions], -(-sum(shapes.values()) // self.processes))

    def rules(self) -> list[BucketRules]:
        """Return the bucket rules of each dataset. Raises ValueError."""
        card = card_of(self.settings.script.family)
        datasets = read_blueprint(self.settings, lambda _: None).datasets
        return [dataset.buckets.rounded(card.bucket_multiple, card.token_multiple) for dataset in datasets]

    def frames(self) -> list[list[Size]]:
        """Return the buckets of each dataset; empty if they are not known, for which `refused` has the reason."""
        try:
            return frames_of(self.rules())
        except (ValueError, OSError, AssertionError):
            return []


@garbage_collection.paused()
def view_of(settings: Settings) -> dict[str, Any]:
    """Return the dataset as JSON: `images`, the `sum` of an epoch, `buckets`, `folders`, `warnings`, `refused`, why it
    cannot be trained on, and the `num_repeats` with which it is shown."""
    view = plan_view(settings)
    images, folders = shown_images(view)
    return {
        "images": [vars(image) for image in images],
        "sum": sum_of(view.plan, view.length(view.plan), view.processes) if view.plan else None,
        "buckets": buckets_of(view.plan, short_batches=view.settings[DatasetOptions].short_batches)
        if view.plan
        else [],
        "folders": [str(folder) for folder in folders],
        "frames": view.frames(),
        "caption_extension": view.settings[CaptionOptions].caption_extension,
        "caption_separator": view.settings[CaptionOptions].caption_separator,
        "warnings": view.warnings,
        "refused": view.refused,
        "num_repeats": view.settings[DatasetOptions].num_repeats,
    }


def plan_view(settings: Settings) -> View:
    """Plan the dataset as training does. A folder without folders like 10_cat is shown with 1 repeat."""
    data = settings[DatasetOptions]
    view = View(settings=settings.replaced({"cache_info": False}))  # looking writes nothing into the folder
    if not data.resolution and not data.dataset_config:
        view.settings = view.settings.replaced({"resolution": USUAL_RESOLUTION})
        view.warnings.append(f"resolution: not set; buckets are shown for {USUAL_RESOLUTION}")
    try:
        view.plan = plan_of(view.settings, view.warnings.append)
    except (ValueError, OSError) as error:
        view.refused = str(error).splitlines()
        if data.train_data_dir and not data.num_repeats and not data.in_json and not data.dataset_config:
            flat = view.settings.replaced({"num_repeats": 1})
            try:
                view.plan = plan_of(flat, view.warnings.append)
                view.settings = flat
            except (ValueError, OSError):
                pass  # the first reason is the one to read
    return view


def plan_of(settings: Settings, warn: Warn) -> DataPlan:
    """Return the data of a run. Raises ValueError, one sentence a line, if it cannot be planned."""
    require_plannable(settings)
    return plan_data(settings, card_of(settings.script.family), seed=settings[TrainingOptions].seed or 0, warn=warn)


def shown_images(view: View) -> tuple[list[ShownImage], list[Path]]:
    """Return the images of the plan in its order, those that it leaves out, and the folders they are in."""
    blueprint = view.blueprint()
    subsets = {Path(s.image_dir): s for d in blueprint.datasets for s in d.subsets if s.image_dir} if blueprint else {}
    root = view.settings[DatasetOptions].train_data_dir
    places = [*subsets] or (folders_below(Path(root)) if root else [])
    extension = view.settings[CaptionOptions].caption_extension
    listings, crops = Listings(extension), CropFacts()
    for folder in places:
        subset = subsets.get(folder)
        listings[str(folder)] = FolderFiles.of(folder, subset.caption_extension if subset else extension)
    images = [_planned(item, "trained", listings, crops) for item in (view.plan.items if view.plan else ())]
    if view.plan and view.plan.validation:
        images += [_planned(item, "validation", listings, crops) for item in view.plan.validation.items]
    taken = {image.path for image in images}
    left = [path for folder in places for path in files_of(folder, besides=taken)]
    fits = _fits(left, blueprint, card_of(view.settings.script.family)) if not view.plan else {}
    why = "; ".join(view.refused[:1]) if not view.plan else ""
    images += [_left_out(path, why, fits.get(path), listings.next_to(path)) for path in left]
    return with_masks(images, mask_files(images, subsets, view)), places


def mask_files(images: Sequence[ShownImage], subsets: Mapping[Path, Subset], view: View) -> dict[str, Path]:
    """Return the mask file of each image that has one, by its path, also if training does not use masks."""
    usual = view.settings[DatasetOptions].conditioning_data_dir
    by_folder: dict[str, list[str]] = {}
    for image in images:
        by_folder.setdefault(os.path.dirname(image.path), []).append(image.path)
    found: dict[str, Path] = {}
    for name, within in by_folder.items():
        folder = Path(name)
        subset = subsets.get(folder)
        if subset and subset.is_reg:
            continue
        named = (subset and subset.conditioning_data_dir) or usual
        root = Path(named) if named else usual_root(folder)
        if root.is_dir():
            masks = find_masks(root, folder.name, [Path(image) for image in within])
            found |= {str(image): mask for image, mask in masks.items()}
    return found


def with_masks(images: Sequence[ShownImage], masks: Mapping[str, Path]) -> list[ShownImage]:
    """Return images with what is known of their mask files."""
    facts = mask_facts(masks.values())
    return [
        replace(image, **_mask_of(image, mask, facts[mask])) if (mask := masks.get(image.path)) else image
        for image in images
    ]


def _mask_of(image: ShownImage, mask: Path, facts: MaskFacts | UnreadableImage) -> dict[str, Any]:
    broken = isinstance(facts, UnreadableImage)
    size, changed = (0, 0) if broken else (mask.stat().st_size, mask.stat().st_mtime_ns)
    problem = ""
    if isinstance(facts, UnreadableImage):
        problem = "broken"
    elif facts.is_black:
        problem = "black"
    elif image.size and not facts.fits(image.size):
        problem = "differs"
    return {"mask_key": image_key(str(mask), size, changed), "mask_path": str(mask), "mask_problem": problem}


def _fits(paths: Sequence[Path], blueprint: Blueprint | None, card: FamilyCard) -> dict[Path, Item]:
    """Return images as they would be planned on their own, without captions, masks and control images."""
    if not blueprint or not blueprint.datasets:
        return {}
    try:
        plan = plan_images(paths, blueprint.datasets[0].buckets, Augmentation(), card, warn=lambda _: None)
    except ValueError:
        return {}
    return {item.path: item for item in plan.items}


def crop_facts(path: Path, size: Size, fit: BucketFit) -> dict[str, Any]:
    """Return how an image is resized and cropped to its bucket if no option varies it."""
    place = place_of(path, size, fit, Augmentation(), Random(0))
    (across, down), (width, height) = place.resized, fit.bucket.size
    return {
        "bucket": str(fit.bucket.alone),
        "resized": place.resized,
        "crop": (place.left / across, place.top / down, width / across, height / down),
        "is_elongated": is_too_elongated(fit),
    }


class CropFacts:
    """The `crop_facts` of many images; most have one of few sizes."""

    def __init__(self) -> None:
        self._known: dict[tuple[Size, Extent, Size], dict[str, Any]] = {}

    def of(self, path: Path, size: Size, fit: BucketFit) -> dict[str, Any]:
        key = (size, fit.bucket, fit.resized)
        if key not in self._known:
            self._known[key] = crop_facts(path, size, fit)
        return self._known[key]


class Listings(dict[str, FolderFiles]):
    """The files of each folder, listed when they are asked for: those of a metadata file may be anywhere."""

    def __init__(self, extension: str) -> None:
        super().__init__()
        self._extension = extension

    def next_to(self, path: Path) -> FolderFiles:
        """Return the files of the folder that this file is in."""
        return self[os.path.dirname(path) or "."]  # much faster than the parent of a path

    def __missing__(self, folder: str) -> FolderFiles:
        self[folder] = FolderFiles.of(Path(folder), self._extension)
        return self[folder]


def _planned(item: Item, role: str, listings: Listings, crops: CropFacts) -> ShownImage:
    subset = item.subset
    files = listings.next_to(item.path)
    return ShownImage(
        **files.facts(item.path, item.size),
        **crops.of(item.path, item.size, item.fit),
        role="regularisation" if subset.is_reg else role,
        size=item.size,
        dataset=item.dataset,
        smaller=str(item.smaller.fit.bucket.alone) if item.smaller else "",
        frames=item.span.frames if item.span else 0,
        repeats=item.repeats,
        caption=item.caption,
        captioned=bool(item.caption) if subset.metadata_file else item.path in files.captions,
        mask=item.mask is not None or item.masked_by_alpha,
        controls=len(item.controls),
        varies=tuple(name for name in VARY_IMAGES if getattr(subset.augmentation, name)),
    )


def _left_out(path: Path, why: str, item: Item | None, files: FolderFiles) -> ShownImage:
    caption, problem = files.caption(path)
    size, reason = why_left_out(path)
    return ShownImage(
        **files.facts(path, size),
        **(crop_facts(path, item.size, item.fit) if item else {}),
        role="left out",
        size=size,
        is_foreign=reason in (NOT_READ, NO_PLUGIN),
        why=reason or problem or why or "the plan of the run leaves it out; see the notes",
        caption=caption,
        captioned=path in files.captions,
    )


def sum_of(plan: DataPlan, train: TrainPlan, processes: int) -> dict[str, Any]:
    """Return the steps of the run as the sum that makes them: images, repeats, batches, epochs."""
    concepts: dict[tuple[str, int, bool], int] = {}
    for item in plan.items:
        key = (item.subset.name, item.repeats, item.subset.is_reg)
        concepts[key] = concepts.get(key, 0) + 1
    has_steps = train.batches_per_epoch > 0
    return {
        "concepts": [
            {"name": name, "images": images, "repeats": repeats, "is_reg": is_reg}
            for (name, repeats, is_reg), images in concepts.items()
        ],
        "images": sum(concepts.values()),
        "per_epoch": sum(item.repeats for item in plan.items),
        "batch_sizes": sorted({dataset.batch_size for dataset in plan.blueprint.datasets}),
        "batches": train.batches_per_epoch,
        "processes": processes,
        "accumulation": train.accumulation,
        "steps_per_epoch": train.steps_per_epoch,
        "epochs": train.epochs if has_steps else 0,
        "steps": train.max_steps if has_steps else 0,
    }


def buckets_of(plan: DataPlan, short_batches: ShortBatches) -> list[dict[str, Any]]:
    """Return the buckets of the training images, with their batches in an epoch: `full` ones, and `rest`, the images of
    the last one if it is not."""
    buckets = []
    for (dataset, extent), items in plan.groups.items():
        size = plan.blueprint.datasets[dataset].batch_size
        per_epoch = sum(item.repeats for item in items)
        full, rest = divmod(per_epoch, size)
        buckets.append(
            {
                "bucket": str(extent.alone),
                "dataset": dataset,
                "images": len(items),
                "per_epoch": per_epoch,
                "batch_size": size,
                "full": full,
                "rest": rest,
                "short_batches": short_batches,
            }
        )
    return buckets
