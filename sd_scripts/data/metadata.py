"""Collect the dataset metadata for saved files and the start of a run: counts, buckets, tags, folders."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sd_scripts.data.plan.blueprint import Subset
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.data.plan.epochs import ShortBatches, batch_shapes
from sd_scripts.library.files.ss_metadata import DatasetMetadata

Tags = dict[str, dict[str, int]]
Folders = dict[str, dict[str, int]]


def dataset_metadata(plan: DataPlan, *, short_batches: ShortBatches = "keep") -> DatasetMetadata:
    """Return the metadata of a plan's datasets."""
    first = plan.blueprint.datasets[0].buckets
    numbers = range(len(plan.blueprint.datasets))
    by_dataset = [[item for item in plan.items if item.dataset == number] for number in numbers]
    return DatasetMetadata(
        num_train_images=_seen(plan.items, is_reg=False),
        num_reg_images=_seen(plan.items, is_reg=True),
        num_validation_images=len(plan.validation.items) if plan.validation else 0,
        num_batches_per_epoch=sum(batch_shapes(plan, short_batches=short_batches).values()),
        resolution=first.resolution,
        tag_frequency=_merged([_tag_frequency(items) for items in by_dataset]),
        dataset_dirs=_merged([_folders(items, is_reg=False) for items in by_dataset]),
        reg_dataset_dirs=_merged([_folders(items, is_reg=True) for items in by_dataset]),
        bucket_info=_bucket_info(by_dataset[0]) if first.enable_bucket else None,
        datasets=[_dataset_metadata(plan, number, by_dataset[number]) for number in numbers]
        if plan.blueprint.from_config
        else None,
    )


def _seen(items: Iterable[Item], *, is_reg: bool) -> int:
    return sum(item.repeats for item in items if item.subset.is_reg == is_reg)


def _tag_frequency(items: Sequence[Item]) -> Tags:
    """Count comma-separated tags, whatever caption_separator is: readers of the metadata expect commas."""
    tags: Tags = {}
    for item in items:
        folder = tags.setdefault(item.subset.name, {})
        for tag in (part.strip().lower() for part in item.caption.split(",")):
            if tag:
                folder[tag] = folder.get(tag, 0) + 1
    return tags


def _folders(items: Sequence[Item], *, is_reg: bool) -> Folders:
    counts = Counter(item.subset.name for item in items if item.subset.is_reg == is_reg)
    repeats = {item.subset.name: item.subset.num_repeats for item in items}
    return {name: {"n_repeats": repeats[name], "img_count": count} for name, count in counts.items()}


def _merged(of_datasets: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merge the tables of several datasets; number the folders that occur in more than one."""
    merged: dict[str, Any] = {}
    for table in of_datasets:
        for name, value in table.items():
            free, again = name, 2
            while free in merged:
                free, again = f"{name} ({again})", again + 1
            merged[free] = value
    return merged


def _bucket_info(items: Sequence[Item]) -> dict[str, Any]:
    counts: Counter[Extent] = Counter()
    for item in items:
        counts[item.fit.bucket] += item.repeats
    errors = [abs(item.fit.ar_error) for item in items]
    return {
        "buckets": {
            number: {"resolution": list(bucket.alone.sides), "count": count}
            for number, (bucket, count) in enumerate(sorted(counts.items()))
        },
        "mean_img_ar_error": sum(errors) / len(errors) if errors else 0.0,
    }


def _dataset_metadata(plan: DataPlan, number: int, items: Sequence[Item]) -> dict[str, Any]:
    dataset = plan.blueprint.datasets[number]
    rules = dataset.buckets
    return {
        "is_dreambooth": not any(subset.metadata_file for subset in dataset.subsets),
        "batch_size_per_device": dataset.batch_size,
        "num_train_images": _seen(items, is_reg=False),
        "num_reg_images": _seen(items, is_reg=True),
        "resolution": list(rules.resolution),
        "enable_bucket": rules.enable_bucket,
        "min_bucket_reso": rules.min_bucket_reso,
        "max_bucket_reso": rules.max_bucket_reso,
        "tag_frequency": _tag_frequency(items),
        "bucket_info": _bucket_info(items) if rules.enable_bucket else None,
        "resize_interpolation": dataset.resize_interpolation,
        "subsets": [_subset_metadata(subset, items) for subset in dataset.subsets],
    }


def _subset_metadata(subset: Subset, items: Sequence[Item]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "img_count": sum(item.subset.name == subset.name for item in items),
        "num_repeats": subset.num_repeats,
        "color_aug": subset.augmentation.color_aug,
        "flip_aug": subset.augmentation.flip_aug,
        "random_crop": subset.augmentation.random_crop,
        "shuffle_caption": subset.captions.shuffle_caption,
        "keep_tokens": subset.captions.keep_tokens,
        "keep_tokens_separator": subset.captions.keep_tokens_separator,
        "secondary_separator": subset.captions.secondary_separator,
        "enable_wildcard": subset.captions.enable_wildcard,
        "caption_prefix": subset.captions.caption_prefix,
        "caption_suffix": subset.captions.caption_suffix,
        "resize_interpolation": subset.augmentation.resize_interpolation,
    }
    if subset.metadata_file:
        return metadata | {"metadata_file": subset.name}
    return metadata | {"image_dir": subset.name, "class_tokens": subset.class_tokens, "is_reg": subset.is_reg}
