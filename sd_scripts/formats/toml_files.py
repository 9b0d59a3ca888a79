"""Reads and writes settings as TOML files: flat, sorted, written atomically."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from sd_scripts.formats import documents
from sd_scripts.formats.atomic_files import write_whole

KEPT_TABLES = "tables"
"""The heading of the unknown tables of a file that is written again, since reading removes one level of headings."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return every key of a settings file. Raises ValueError, one sentence, if it is missing or not TOML.

    Tables are only headings: their keys move up one level, and the later of two equal keys wins. A table within a table
    keeps its full name, such as `optimizer_args.args`.
    """
    return flat(documents.read_toml(path))


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            keys |= {f"{key}.{k}" if isinstance(v, dict) and key != KEPT_TABLES else k: v for k, v in value.items()}
        else:
            keys[key] = value
    return keys


def toml_text(values: Mapping[str, Any]) -> str:
    """Return the values as TOML, sorted by name; None, which TOML does not have, is left out."""
    plain = {key: values[key] for key in sorted(values) if values[key] is not None}
    tables = {key: plain.pop(key) for key in list(plain) if isinstance(plain[key], dict)}
    return tomlkit.dumps(plain | ({KEPT_TABLES: tables} if tables else {}))


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Create the folder and write the file atomically."""
    text = toml_text(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
