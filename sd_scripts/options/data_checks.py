"""Whether the folders and files that describe a run's data are there and hold images; torch is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.options.metadata_file import read_metadata

if TYPE_CHECKING:
    from sd_scripts.options.preflight import Sane


def folders(sane: Sane) -> Iterator[str]:
    """train_data_dir and reg_data_dir, where nothing else describes the data."""
    options = sane[DatasetOptions]
    if options.dataset_config:
        return
    for name in ("train_data_dir", "reg_data_dir"):
        folder = getattr(options, name)
        if folder and not Path(folder).is_dir():
            yield f"{name}: there is no folder {folder!r}"


def metadata(sane: Sane) -> Iterator[str]:
    options = sane[DatasetOptions]
    if options.in_json and not options.dataset_config:
        read_metadata(Path(options.in_json), "in_json")
    yield from ()


CHECKS = (folders, metadata)
