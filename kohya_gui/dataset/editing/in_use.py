"""Which run of the queue reads a folder of images."""

from pathlib import Path
from typing import Any

from sd_scripts.formats.editing.dataset_toml import subsets_in
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue

FOLDER_OPTIONS = ("train_data_dir", "reg_data_dir", "conditioning_data_dir", "control_directory")
SUBSET_KEYS = ("image_dir", "conditioning_data_dir", "control_directory")


def run_using(queue: RunQueue, folder: Path) -> str:
    """Return the name of a queued or active run that reads images in or below a folder; "" if none is known to."""
    for row in (*queue.store.living(), *queue.store.queued()):
        try:
            settings = read_toml(RunFolder(row.folder).config)
        except ValueError:  # it has not been written yet, or the run's folder is gone
            continue
        if any(_overlap(folder, Path(path).expanduser().absolute()) for path in _folders(settings)):
            return f"the run '{row.name}'"
    return ""


def _folders(settings: dict[str, Any]) -> list[str]:
    named = [str(settings[name]) for name in FOLDER_OPTIONS if settings.get(name)]
    if config := settings.get("dataset_config"):
        try:
            values = [subset.values for subset in subsets_in(Path(str(config)).expanduser())]
        except ValueError:
            values = []
        named += [str(each[key]) for each in values for key in SUBSET_KEYS if each.get(key)]
    return named


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
