"""Presets: settings files in `presets/` about how to train, which leave paths and names alone."""

import functools
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.registry import component_options, preset_family
from sd_scripts.formats.documents import read_toml
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.runs.store import state_folder
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.family_options import each_option

BASE_MODEL = "pretrained_model_name_or_path"
INSTALLED, CHECKED_OUT = (Path(__file__).parents[level] / "presets" for level in (1, 2))
PRESETS = INSTALLED if INSTALLED.is_dir() else CHECKED_OUT
KEPT_BY_PRESETS = (
    *dict.fromkeys((BASE_MODEL, "vae", *component_options())),
    *("train_data_dir", "num_repeats", "caption_prefix", "reg_data_dir", "dataset_config", "in_json"),
    *("conditioning_data_dir", "control_directory", "output_dir", "output_name", "logging_dir", "sample_model"),
    "sample_prompts",
    *(o.name for o in each_option(SlurmOptions)),
)
"""Paths, names and the place, which a preset leaves alone: it is about how to train."""


IN_NAME = re.compile(r"(?<!\d)(\d{1,6})gb\b")
"""The GPU's memory in a preset's name."""
OWN_NAME = re.compile(r"[a-z0-9_-]{1,80}")
"""Names of users' own presets."""


def preset_file(tab: str, name: str) -> Path:
    return PRESETS / tab / f"{name}.toml"


def own_presets(tab: str) -> Path:
    """Return the folder of the user's own presets of a tab: settings files that name their family."""
    return state_folder() / "presets" / tab


def own_preset(tab: str, name: str) -> Path:
    """Return the file of the user's preset with this name. Raises ValueError if there is none."""
    file = own_presets(tab) / f"{name}.toml"
    if not OWN_NAME.fullmatch(name) or not file.is_file():
        raise ValueError("This preset is no longer there")
    return file


@functools.cache
def measured() -> Mapping[str, Mapping[str, Any]]:
    """Return the measured memory and time of presets by "tab/name": `gib` in use, `ms` of a step as a text, `gpu`."""
    return read_toml(PRESETS / "measured.toml")


def family_of_preset(path: Path) -> str:
    """Return the family of a preset's file, by its name; empty for any other file."""
    return preset_family(path.stem) if path.parent.parent == PRESETS else ""


def first_preset(family: str) -> str:
    """Return the preset of a fresh page, since the bare defaults are sd-scripts' own."""
    return f"{family}_safe_start"


def preset_title(path: Path) -> str:
    """Return a preset's title: the family's, then "low memory 12 GB" for low_memory_12gb."""
    family = preset_family(path.stem)
    words = path.stem.removeprefix(f"{family}_").replace("_", " ")
    words = IN_NAME.sub(r"\1 GB", words)
    return f"{FAMILY_TITLES.get(family, family)} {words}".strip()


def preset_words(path: Path) -> str:
    """Return a preset's description: the comment at its top."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line[1:].strip() for line in takewhile(lambda line: line.startswith("#"), lines))
