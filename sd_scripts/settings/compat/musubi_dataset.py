"""Reads the dataset files of musubi-tuner, which list images in [[datasets]] instead of [[datasets.subsets]]."""

import re
from typing import Any

SOURCES = {"image_directory": "image_dir", "image_jsonl_file": "metadata_file"}
"""Key of a dataset there -> key of a subset here."""
OF_SUBSET = ("control_directory",)
"""Keys of a dataset there that only a subset has here."""
OLD_NAME = re.compile(r"\w+_(no_resize_control|control_resolution)")
"""Older keys there began with a model's name."""


def with_subsets(config: dict[str, Any]) -> dict[str, Any]:
    """Return a description in which each dataset of musubi-tuner has its images as a subset; others are unchanged."""
    datasets = config.get("datasets")
    if not isinstance(datasets, list):
        return config
    return {**config, "datasets": [_with_subset(dataset) if _is_musubi(dataset) else dataset for dataset in datasets]}


def _is_musubi(dataset: Any) -> bool:
    return isinstance(dataset, dict) and "subsets" not in dataset and not SOURCES.keys().isdisjoint(dataset)


def _with_subset(dataset: dict[str, Any]) -> dict[str, Any]:
    old_names = {key: found[1] for key in dataset if (found := OLD_NAME.fullmatch(key))}
    values = {old_names.get(key, key): value for key, value in dataset.items()}
    subset = {SOURCES.get(key, key): values.pop(key) for key in (*SOURCES, *OF_SUBSET) if key in values}
    return {**values, "subsets": [subset]}
