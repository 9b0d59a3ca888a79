"""Resolve which folders make which datasets: a value comes from subset, dataset, general, settings or the default."""

import dataclasses
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sd_scripts.data.plan.buckets import BucketRules, Size
from sd_scripts.data.plan.counted_warnings import Warn
from sd_scripts.data.sources.captions import CaptionRules
from sd_scripts.data.sources.controls import ControlRules
from sd_scripts.data.sources.images import Augmentation
from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.formats.clips.spans import ClipRules
from sd_scripts.formats.documents import split_lines
from sd_scripts.formats.images.image_folders import FoundFolders, image_folders, regularisation_folders
from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.clips import frame_counts
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.settings import dataset_schema as schema
from sd_scripts.settings.settings import Settings

Lookup = Callable[[str], Any]
PLACES = ("image_dir", "metadata_file", "conditioning_data_dir", "control_directory")
"""Keys of a dataset description that name a file or folder."""
ONE_LINE = ("caption_prefix", "caption_suffix", "class_tokens")
"""Keys of a dataset description whose texts become part of a caption."""


@dataclass(frozen=True, kw_only=True)
class Subset:
    """One folder or metadata file, with the caption and augmentation options of its images and clips."""

    image_dir: str | None = None
    metadata_file: str | None = None
    conditioning_data_dir: str | None = None
    control_directory: str | None = None
    num_repeats: int = 1
    is_reg: bool = False
    class_tokens: str | None = None
    caption_extension: str = ".caption"
    cache_info: bool = False
    media: Literal["all", "images", "clips"] = "all"
    """Which files of the folder are used."""
    captions: CaptionRules
    augmentation: Augmentation
    controls: ControlRules
    clips: ClipRules = field(default_factory=ClipRules)

    @cached_property
    def name(self) -> str:
        """The last component of the folder or metadata file, as it appears in saved metadata."""
        return Path(self.metadata_file or self.image_dir or "").name


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Subsets that share bucket rules and batches."""

    batch_size: int = 1
    validation_split: float = 0.0
    validation_seed: int | None = None
    prior_loss_weight: float = 1.0
    resize_interpolation: str | None = None
    buckets: BucketRules
    subsets: tuple[Subset, ...]


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All datasets of a run, before any image is opened."""

    datasets: tuple[Dataset, ...]
    source: str
    """The option that describes them, for messages."""
    from_config: bool = False
    """Whether dataset_config describes them, rather than folder options."""


def read_blueprint(settings: Settings, warn: Warn, clips: ClipFacts | None = None) -> Blueprint:
    """Return the datasets that the settings describe, for a family that is trained on clips if there are facts on them;
    ValueError names the option or key path at fault."""
    options = settings[DatasetOptions]
    if options.dataset_config:
        file = Path(options.dataset_config)
        config = schema.read_config(file)
        lines = schema.read_lines(file)
        blueprint = resolve(config, dataset_defaults(settings, clips), lines)
        for remark in schema.remarks(config, lines):
            warn(f"dataset_config: {remark}")
        return blueprint
    values = settings.values()
    subsets = _described_by_options(options, values["masked_loss"], warn)
    if directory := values.get("control_directory"):
        subsets = [subset if subset.get("is_reg") else {**subset, "control_directory": directory} for subset in subsets]
    datasets = [{"subsets": subsets}]
    general = _resolve_datasets({"datasets": datasets}, dataset_defaults(settings, clips))
    return Blueprint(datasets=general, source="in_json" if options.in_json else "train_data_dir")


def resolve(config: schema.Config, defaults: dict[str, Any], lines: schema.Lines | None = None) -> Blueprint:
    """Return the datasets of a dataset_config, with `defaults` as dataset_defaults returns them; raise ValueError with
    one line for each mistake in it."""
    found = schema.problems(config, masked_loss=defaults["masked_loss"], lines=lines)
    if found:
        raise ValueError("\n".join(f"dataset_config: {problem}" for problem in found))
    datasets = _resolve_datasets(config, defaults)
    return Blueprint(datasets=datasets, source="dataset_config", from_config=True)


def parse_resolution(text: str, option: str = "resolution") -> Size:
    """Parse width and height from "1024" or "1024,768"."""
    sides = text.replace("x", ",").split(",")
    numbers = [int(side) for side in sides if is_whole_number(side.strip())]
    if len(numbers) not in (1, 2) or len(numbers) != len(sides) or min(numbers) < 1:
        raise ValueError(f"{option}: {text!r} is not a size; write 1024 or 1024,768")
    return numbers[0], numbers[-1]


def _resolve_datasets(config: schema.Config, fallback: dict[str, Any]) -> tuple[Dataset, ...]:
    general = config.get("general", {})
    return tuple(_resolve_dataset(dataset, general, fallback) for dataset in config.get("datasets", []))


def _resolve_dataset(config: schema.Config, general: schema.Config, fallback: dict[str, Any]) -> Dataset:
    lookup = _chain(config, general, fallback)
    resolution = lookup("resolution")
    assert resolution is not None, "preflight checks it"
    width, height = (resolution, resolution) if isinstance(resolution, int) else resolution
    subsets = tuple(_resolve_subset(_chain(subset, config, general, fallback)) for subset in config.get("subsets", []))
    buckets = BucketRules(**_filled(BucketRules, lookup) | {"resolution": (width, height)})
    return Dataset(**_filled(Dataset, lookup) | {"buckets": buckets, "subsets": subsets})


def _resolve_subset(lookup: Lookup) -> Subset:
    face = lookup("face_crop_aug_range")
    augmentation = _filled(Augmentation, lookup) | ({"face_crop_aug_range": (face[0], face[1])} if face else {})
    captions = CaptionRules(**_filled(CaptionRules, lookup))
    if lookup("is_reg"):
        captions = replace(captions, templates=())
    places = {name: os.path.expanduser(place) for name in PLACES if (place := lookup(name))}
    return Subset(
        **_filled(Subset, lookup) | places,
        captions=captions,
        augmentation=Augmentation(**augmentation),
        controls=control_rules(lookup),
        clips=_clip_rules(lookup),
    )


def _clip_rules(lookup: Lookup) -> ClipRules:
    frames = lookup("target_frames")
    counts = frame_counts(frames) if isinstance(frames, str) else [frames] if isinstance(frames, int) else frames
    return ClipRules(**_filled(ClipRules, lookup) | {"target_frames": tuple(counts or ())})


def control_rules(lookup: Lookup) -> ControlRules:
    """Return how control images are resized, by the options or keys of ControlRules' names."""
    size = lookup("control_resolution")
    if isinstance(size, int | str):
        size = parse_resolution(str(size), "control_resolution")
    return ControlRules(
        control_resolution=(size[0], size[1]) if size else None, no_resize_control=bool(lookup("no_resize_control"))
    )


def _chain(*levels: dict[str, Any]) -> Lookup:
    """Return a lookup that takes the first level with a value other than None."""
    return lambda name: next((level[name] for level in levels if level.get(name) is not None), None)


def _filled(record: type, lookup: Lookup) -> dict[str, Any]:
    values = {each.name: lookup(each.name) for each in dataclasses.fields(record)}
    # of a caption with several lines only one is used, so a line end in its prefix would cut off all that follows
    lines = {name: split_lines(text) for name in ONE_LINE if (text := values.get(name))}
    joined = {name: " ".join(parts).strip() for name, parts in lines.items() if len(parts) > 1}
    return {name: value for name, value in (values | joined).items() if value is not None}


def dataset_defaults(settings: Settings, clips: ClipFacts | None = None) -> dict[str, Any]:
    """Return the settings under their names in a dataset_config, without those that are valid only for a subset."""
    values = settings.values()
    embedding = settings.get(EmbeddingOptions)
    face = values["face_crop_aug_range"]
    of_clips = _clip_defaults(settings.changed(), clips) if clips else {}
    return (
        values
        | of_clips
        | {
            "batch_size": values["train_batch_size"],
            "num_repeats": values["dataset_repeats"],
            "resolution": parse_resolution(values["resolution"]) if values["resolution"] else None,
            "face_crop_aug_range": _parse_range(face) if face else None,
            "conditioning_data_dir": None,
            "templates": embedding.templates if embedding else (),
            "control_directory": None,
        }
    )


def _clip_defaults(changed: Collection[str], clips: ClipFacts) -> dict[str, Any]:
    """Return the values of options that are unset in a family of clips: its rate, and the buckets of musubi-tuner."""
    buckets = {"bucket_reso_steps": clips.bucket_steps, "min_bucket_reso": 0, "max_bucket_reso": 0}
    unset = {name: value for name, value in {**buckets, "target_fps": clips.fps}.items() if name not in changed}
    return {"follow_area": True, "frame_step": clips.frame_step, "shortest": clips.shortest, **unset}


def _parse_range(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"face_crop_aug_range: {text!r} is not a range; write two numbers like 1.0,2.0") from None
    return low, high


def _described_by_options(options: DatasetOptions, masked_loss: bool, warn: Warn) -> list[schema.Config]:
    """Return the subsets of a run without dataset_config: a metadata file, or folders named like `10_cat`."""
    if options.in_json:
        return [{"metadata_file": options.in_json, "image_dir": options.train_data_dir}]
    if not options.train_data_dir:
        raise ValueError("train_data_dir: is required unless dataset_config is set")
    repeats = options.num_repeats
    many = options.allow_many_repeats
    found = image_folders(Path(options.train_data_dir), repeats, allow_many_repeats=many)
    subsets = _folder_subsets("train_data_dir", found, warn)
    if options.conditioning_data_dir and masked_loss:
        subsets = [{**subset, "conditioning_data_dir": options.conditioning_data_dir} for subset in subsets]
    if options.reg_data_dir:
        found = regularisation_folders(Path(options.reg_data_dir), repeats, allow_many_repeats=many)
        subsets += [{**subset, "is_reg": True} for subset in _folder_subsets("reg_data_dir", found, warn)]
    return subsets


def _folder_subsets(name: str, found: FoundFolders, warn: Warn) -> list[schema.Config]:
    """Return a subset per folder: `10_cat` means 10 repeats, and "cat" as the caption of images without a file."""
    if found.problem:
        raise ValueError(f"{name}: {found.problem}")
    for remark in found.remarks:
        warn(f"{name}: {remark}")
    return [
        {"image_dir": str(folder.path), "num_repeats": folder.repeats, "class_tokens": folder.class_tokens}
        for folder in found.folders
    ]
