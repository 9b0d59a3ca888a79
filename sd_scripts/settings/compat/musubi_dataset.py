"""Reads the dataset files of musubi-tuner, which list images and clips in [[datasets]] instead of
[[datasets.subsets]]."""

import re
from typing import Any

SOURCES = {
    "image_directory": "image_dir",
    "image_jsonl_file": "metadata_file",
    "video_directory": "image_dir",
    "video_jsonl_file": "metadata_file",
}
"""Key of a dataset there -> key of a subset here."""
MEDIA = {"image_directory": "images", "video_directory": "clips"}
"""Key of a dataset there -> which files of the folder it means."""
OF_CLIPS = ("video_directory", "video_jsonl_file")
OF_SUBSET = ("control_directory",)
"""Keys of a dataset there that only a subset has here."""
OLD_NAME = re.compile(r"\w+_(no_resize_control|control_resolution)")
"""Older keys there began with a model's name."""


def with_subsets(config: dict[str, Any]) -> dict[str, Any]:
    """Return a description in which each dataset of musubi-tuner has its images as a subset; others are unchanged."""
    datasets = config.get("datasets")
    if not isinstance(datasets, list):
        return config
    general = config.get("general")
    inherited = general if isinstance(general, dict) else {}
    return {
        **config,
        "datasets": [_with_subset(dataset, inherited) if _is_musubi(dataset) else dataset for dataset in datasets],
    }


def _is_musubi(dataset: Any) -> bool:
    return isinstance(dataset, dict) and "subsets" not in dataset and not SOURCES.keys().isdisjoint(dataset)


def _with_subset(dataset: dict[str, Any], general: dict[str, Any]) -> dict[str, Any]:
    old_names = {key: found[1] for key in dataset if (found := OLD_NAME.fullmatch(key))}
    values = {old_names.get(key, key): value for key, value in dataset.items()}
    subset = {SOURCES.get(key, key): values.pop(key) for key in (*SOURCES, *OF_SUBSET) if key in values}
    if media := next((media for key, media in MEDIA.items() if key in dataset), None):
        subset["media"] = media
    of_clips = any(key in dataset for key in OF_CLIPS)
    whole = _values("frame_extraction", dataset, general)[:1] == ["full"]
    if of_clips and not whole and not _values("target_frames", dataset, general):
        values["target_frames"] = [1]  # the default there; here it is whole clips
    return {**values, "subsets": [subset]}


def _values(key: str, *levels: dict[str, Any]) -> list[Any]:
    return [level[key] for level in levels if level.get(key) is not None]
