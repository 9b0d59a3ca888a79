"""Change a dataset_config TOML without losing its comments, its order or keys that are not known here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from sd_scripts.formats.documents import parse_toml, read_document


@dataclass(frozen=True, kw_only=True)
class Subset:
    """A subset of a dataset_config."""

    place: tuple[int, int]
    """Numbers of its dataset, and of the subset in it."""
    values: Mapping[str, Any]
    """Its keys, and those of its dataset and of [general] that apply to it."""


def with_subset_value(content: bytes, place: tuple[int, int], key: str, value: str | int | bool) -> bytes:
    """Return a dataset_config with a key of one subset changed; `place`: numbers of the dataset and of its subset.

    Raises ValueError, one sentence, if the file has no such subset or cannot be kept as it is.
    """
    text = content.decode("utf-8-sig")
    line_end = "\r\n" if "\r\n" in text else "\n"
    before = parse_toml(text)
    try:
        document = tomlkit.parse(text)
        if tomlkit.dumps(document) != text:
            raise ValueError("dataset_config: cannot be changed without losing parts of it; edit it by hand")
        dataset, subset = place
        document["datasets"][dataset]["subsets"][subset][key] = value  # type: ignore[index]
        changed = tomlkit.dumps(document)
    except (TOMLKitError, LookupError, TypeError) as error:
        raise ValueError(f"dataset_config: has no subset {place[1] + 1} of dataset {place[0] + 1} ({error})") from None
    changed = re.sub(r"\r?\n", line_end, changed)
    before["datasets"][dataset]["subsets"][subset][key] = value
    if parse_toml(changed) != before:
        raise ValueError("dataset_config: cannot be changed without losing parts of it; edit it by hand")
    return changed.encode()


def subsets_in(file: Path) -> list[Subset]:
    """Return the subsets of a dataset_config, TOML or JSON. Raises ValueError, one sentence."""
    try:
        document = read_document(file)
    except ValueError as error:
        raise ValueError(f"dataset_config: {error}") from None
    general = _table(_table(document).get("general"))
    found = []
    for number, dataset in enumerate(_tables(_table(document).get("datasets"))):
        for count, subset in enumerate(_tables(dataset.get("subsets"))):
            above = {key: value for key, value in dataset.items() if key != "subsets"}
            found.append(Subset(place=(number, count), values={**general, **above, **subset}))
    return found


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: Any) -> list[dict[str, Any]]:
    return [_table(each) for each in value] if isinstance(value, list) else []
