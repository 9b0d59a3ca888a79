"""The keys of a --dataset_config file as tables, level by level, and a validator for the files."""

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sd_scripts.formats.clips.spans import Extraction
from sd_scripts.formats.documents import read_document, read_text
from sd_scripts.formats.images.folder_names import is_ending
from sd_scripts.formats.images.image_folders import MOST_REPEATS
from sd_scripts.formats.toml_lines import key_lines, line_of
from sd_scripts.formats.words import first
from sd_scripts.options.clips import MOST_FRAMES, ClipOptions
from sd_scripts.options.dataset import (
    SIDES,
    AugmentOptions,
    BucketOptions,
    CaptionOptions,
    ControlOptions,
    DatasetOptions,
    ValidationOptions,
)
from sd_scripts.settings.compat.musubi_dataset import with_subsets
from sd_scripts.settings.family_options import each_option

Config = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of value: its name in messages and its test."""

    says: str
    accepts: Callable[[Any], bool]


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
# true counts as a whole number, 1 does not count as true: existing files rely on both
WHOLE = Kind("a whole number", lambda value: isinstance(value, int))
NUMBER = Kind("a number", lambda value: isinstance(value, (int, float)) and math.isfinite(value))
FLOAT = Kind(
    "a number with a decimal point, such as 0.1", lambda value: isinstance(value, float) and math.isfinite(value)
)
TEXT = Kind("text", lambda value: isinstance(value, str))
ENDING = Kind("a file extension, such as .txt", lambda value: isinstance(value, str) and is_ending(value))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
SIZE = Kind("a whole number or [width, height]", lambda value: WHOLE.accepts(value) or _pair(value, WHOLE))
FRAMES = Kind(
    "a number of frames or a list of them, such as [1, 25, 45]",
    lambda value: WHOLE.accepts(value) or (isinstance(value, list) and bool(value) and all(map(WHOLE.accepts, value))),
)
RANGE = Kind("two numbers with a decimal point, such as [1.0, 2.0]", lambda value: _pair(value, FLOAT))


def _one_of(words: Sequence[str]) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: value in words)


Keys = dict[str, Kind]
Lines = dict[str, int]
"""Path of a key -> its line."""
Finding = tuple[str, str]
"""Path of a key, and its problem."""

OPTIONS = {
    option.name: option
    for group in (
        *(DatasetOptions, BucketOptions, CaptionOptions),
        *(AugmentOptions, ControlOptions, ClipOptions, ValidationOptions),
    )
    for option in each_option(group)
}
OTHER_NAMES = {"batch_size": "train_batch_size"}
OF_TYPE = {bool: FLAG, int: WHOLE, float: NUMBER, str: TEXT}
SPECIAL: Keys = {
    **dict.fromkeys(("resolution", "control_resolution"), SIZE),
    "face_crop_aug_range": RANGE,
    "target_frames": FRAMES,
    "frame_extraction": _one_of(get_args(Extraction)),
    "media": _one_of(("all", "images", "clips")),
    "caption_extension": ENDING,
    **dict.fromkeys(("validation_split", "network_multiplier"), FLOAT),
    "custom_attributes": TABLE,
    **dict.fromkeys(("cache_directory", "class_tokens", "image_dir", "metadata_file"), TEXT),
    "is_reg": FLAG,
    "fp_latent_window_size": WHOLE,
}
"""Keys that are not options, or accept different values here."""


def _keys(names: str) -> Keys:
    """Return the keys of these names; each accepts the values of the option with the same meaning."""
    return {name: SPECIAL.get(name) or OF_TYPE[OPTIONS[OTHER_NAMES.get(name, name)].type] for name in names.split()}


DATASET = _keys(
    "batch_size resolution enable_bucket min_bucket_reso max_bucket_reso bucket_reso_steps bucket_no_upscale "
    "equal_token_buckets validation_split validation_seed network_multiplier resize_interpolation cache_directory "
    "fp_latent_window_size"
)
ANY_SUBSET = _keys(
    "num_repeats shuffle_caption caption_separator keep_tokens keep_tokens_separator secondary_separator "
    "enable_wildcard color_aug flip_aug random_crop face_crop_aug_range caption_prefix caption_suffix "
    "token_warmup_min token_warmup_step custom_attributes resize_interpolation caption_dropout_rate "
    "caption_dropout_every_n_epochs caption_tag_dropout_rate control_resolution no_resize_control "
    "target_frames frame_extraction frame_stride frame_sample max_frames source_fps target_fps"
)
CAPTION_FILES = _keys("caption_extension cache_info")
CLASS_TOKENS = _keys("class_tokens")
WITHOUT_EFFECT = {
    "cache_directory": "has no effect: caches are stored next to the images",
    "custom_attributes": "has no effect: nothing reads these attributes",
    "fp_latent_window_size": "has no effect: the model's own window is used",
    "network_multiplier": "has no effect: every dataset trains the network at full strength",
}
"""Accepted key -> remark."""


UNSUPPORTED = {
    "multiple_target": "no model here is trained with several targets",
    **dict.fromkeys(
        ("fp_1f_clean_indices", "fp_1f_target_index", "fp_1f_no_post"), "single frames at a distance are not trained"
    ),
}
"""Key of musubi-tuner -> why there is nothing like it."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a dataset lists its images; the same for all its subsets."""

    inherited: Keys
    """Keys that a dataset may set for its subsets."""
    own: Keys
    """Keys that only a subset may have."""
    required: tuple[str, ...]


FOLDERS = Style(
    inherited=ANY_SUBSET | CAPTION_FILES | CLASS_TOKENS,
    own=_keys("image_dir is_reg alpha_mask control_directory media"),
    required=("image_dir",),
)
METADATA = Style(inherited=ANY_SUBSET, own=_keys("metadata_file image_dir alpha_mask"), required=("metadata_file",))
MASKS = Style(
    inherited=ANY_SUBSET | CAPTION_FILES,
    own=_keys("image_dir conditioning_data_dir control_directory media"),
    required=("image_dir", "conditioning_data_dir"),
)
GENERAL: Keys = DATASET | ANY_SUBSET | CAPTION_FILES | CLASS_TOKENS

RANGES: dict[str, tuple[float, float]] = {
    key: within for key in GENERAL if (option := OPTIONS.get(OTHER_NAMES.get(key, key))) and (within := option.within)
} | {
    **dict.fromkeys(("resolution", "control_resolution"), SIDES),
    **{"num_repeats": (0, MOST_REPEATS), "target_frames": (1, MOST_FRAMES)},
}
"""Smallest and largest value of each number; a subset with 0 repeats is skipped."""


def read_config(path: Path) -> Config:
    """Read a TOML file, or a JSON file if it is named so. Datasets of musubi-tuner, which have no subsets, get one."""
    try:
        config = read_document(path)
    except ValueError as error:
        raise ValueError(f"dataset_config: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"dataset_config: '{path}' must contain [[datasets]]")
    return with_subsets(config)


def read_lines(path: Path) -> Lines:
    """Return the line of each key of a TOML file; empty for a JSON file."""
    return {} if path.suffix.lower() == ".json" else key_lines(read_text(path))


def problems(config: Config, *, masked_loss: bool, lines: Lines | None = None) -> list[str]:
    """Return the first mistakes in a dataset description as sentences that begin with the key's path and line."""
    found = (f"{located(path, lines)} {why}" for path, why in _config_problems(config, masked_loss))
    return [*first(found, "has more problems, which are not listed; correct these first")]


def remarks(config: Config, lines: Lines | None = None) -> list[str]:
    """Return warnings about values that are accepted for compatibility but may not be intended."""
    found = []
    for path, key, value in _each_value(config):
        if key in WITHOUT_EFFECT and value != 1:
            found.append(f"{located(path, lines)} {WITHOUT_EFFECT[key]}")
        elif isinstance(value, bool) and GENERAL.get(key) in (WHOLE, NUMBER, SIZE):
            found.append(f"{located(path, lines)} is {str(value).lower()}, which is read as {int(value)}")
    return found


def each_subset(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield every subset with its path, even from a description with mistakes."""
    yield from (next(iter(levels.items())) for levels in _levels_of_subsets(config))


def _levels_of_subsets(config: Config) -> Iterator[dict[str, Config]]:
    """Yield for each subset the tables that give it values, by path: its own, its dataset's, and [general]."""
    general = _table(config.get("general"))
    for number, dataset in enumerate(_tables(config.get("datasets"))):
        for index, subset in enumerate(_tables(_table(dataset).get("subsets"))):
            if isinstance(subset, dict):
                place = f"datasets[{number}]"
                yield {f"{place}.subsets[{index}]": subset, place: dataset, "general": general}


def effective(config: Config, key: str) -> dict[str, Any]:
    """Return the values of a key for the subsets that are trained, by the path of the key that gives each."""
    found = {}
    for levels in _levels_of_subsets(config):
        if _first(levels, "num_repeats")[1] == 0 or _first(levels, "validation_split")[1] == 1:
            continue
        place, value = _first(levels, key)
        if place:
            found[f"{place}.{key}"] = value
    return found


def _first(levels: dict[str, Config], key: str) -> tuple[str, Any]:
    """Return the place and the value of a key in the first of the tables that has it."""
    return next(((place, table[key]) for place, table in levels.items() if table.get(key) is not None), ("", None))


def without_resolution(config: Config) -> list[str]:
    """Return the paths of datasets to which neither they nor [general] give a resolution."""
    tables = [_table(dataset) for dataset in _tables(config.get("datasets"))]
    unset = _table(config.get("general")).get("resolution") is None
    return [f"datasets[{n}]" for n, table in enumerate(tables) if unset and table.get("resolution") is None]


def _table(value: Any) -> Config:
    return value if isinstance(value, dict) else {}


def _tables(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def located(path: str, lines: Lines | None) -> str:
    """Return a key's path, with its line if known."""
    line = line_of(path, lines) if lines else None
    return f"{path} (line {line})" if line else path


def _each_value(table: Config, path: str = "") -> Iterator[tuple[str, str, Any]]:
    for key, value in table.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, dict) and key not in WITHOUT_EFFECT:
            yield from _each_value(value, place)
        elif isinstance(value, list) and key in ("datasets", "subsets"):
            for index, entry in enumerate(value):
                yield from _each_value(entry, f"{place}[{index}]") if isinstance(entry, dict) else ()
        else:
            yield place, key, value


def _config_problems(config: Config, masked_loss: bool) -> Iterator[Finding]:
    for key in sorted(config.keys() - {"general", "datasets"}):
        yield key, "is unknown: the top level takes [general] and [[datasets]]"
    yield from _table_problems(config.get("general", {}), GENERAL, "general")
    datasets = config.get("datasets", [])
    if not isinstance(datasets, list):
        yield "datasets", "must be a list: write [[datasets]]"
        return
    for index, dataset in enumerate(datasets):
        yield from _dataset_problems(dataset, f"datasets[{index}]", masked_loss)


def _dataset_problems(dataset: Any, path: str, masked_loss: bool) -> Iterator[Finding]:
    subsets = dataset.get("subsets", []) if isinstance(dataset, dict) else []
    if not isinstance(subsets, list) or not all(isinstance(subset, dict) for subset in subsets):
        yield f"{path}.subsets", "must be a list of tables: write [[datasets.subsets]]"
        return
    style = _style(subsets, masked_loss)
    if style is None:
        yield f"{path}.subsets", "mix metadata_file with image_dir alone: put them in two [[datasets]]"
        return
    yield from _table_problems(dataset, DATASET | style.inherited | {"subsets": Kind("", lambda _: True)}, path)
    for index, subset in enumerate(subsets):
        subset_path = f"{path}.subsets[{index}]"
        yield from _table_problems(subset, style.inherited | style.own, subset_path)
        yield from ((f"{subset_path}.{key}", "is required") for key in style.required if subset.get(key) is None)


def _style(subsets: list[Config], masked_loss: bool) -> Style | None:
    if masked_loss and all("conditioning_data_dir" in subset for subset in subsets):
        return MASKS
    with_metadata = ["metadata_file" in subset for subset in subsets]
    if subsets and all(with_metadata):
        return METADATA
    return None if any(with_metadata) else FOLDERS


def _table_problems(table: Any, keys: Keys, path: str) -> Iterator[Finding]:
    if not isinstance(table, dict):
        yield path, "must be a table"
        return
    for key, value in table.items():
        if key not in keys and key in UNSUPPORTED:
            yield f"{path}.{key}", f"is not supported: {UNSUPPORTED[key]}"
        elif key not in keys:
            yield f"{path}.{key}", f"is unknown here{_hint(key, keys)}"
        elif value is None:  # null in JSON means unset
            continue
        elif not keys[key].accepts(value):
            yield f"{path}.{key}", f"must be {keys[key].says}, not {value!r}"
        elif why := _out_of_range(key, value):
            yield f"{path}.{key}", why


def _out_of_range(key: str, value: Any) -> str | None:
    """Return why a number is out of range, by the range of the option of the same meaning."""
    if key not in RANGES:
        return None
    low, high = RANGES[key]
    outside = [number for number in (value if isinstance(value, list) else [value]) if not low <= number <= high]
    return f"must be within {low}..{high}, not {outside[0]}" if outside else None


def _hint(key: str, keys: Keys) -> str:
    """Explain where a misplaced key belongs, or suggest the intended key."""
    if key == "conditioning_data_dir":
        return ": it needs masked_loss, and every subset of the dataset must have it"
    if key in DATASET:
        return ": it belongs to [[datasets]] or [general]"
    if key in FOLDERS.own | METADATA.own:
        return ": it belongs to [[datasets.subsets]]"
    if key in CAPTION_FILES | CLASS_TOKENS:
        return ": a metadata_file contains the captions itself"
    near = difflib.get_close_matches(key, keys, n=1)
    return f". Did you mean {near[0]}?" if near else ""


def _pair(value: Any, kind: Kind) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(kind.accepts(item) for item in value)
