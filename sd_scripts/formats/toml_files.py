"""Reads and writes settings as TOML files: flat, sorted, written atomically."""

from collections.abc import Iterator, Mapping
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
    plain = {key: values[key] for key in sorted(values)}
    tables = {key: plain.pop(key) for key in list(plain) if isinstance(plain[key], dict)}
    return "".join(_lines(plain | ({KEPT_TABLES: tables} if tables else {})))


def _lines(table: Mapping[str, Any], heading: str = "") -> Iterator[str]:
    """Yield the lines of a table. tomlkit writes keys and plain values; its time for whole tables and lists grows with
    the square of their lengths."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lists = {key: value for key, value in table.items() if _lists_tables(value)}
    for key, value in table.items():
        if value is not None and key not in tables and key not in lists:
            yield f"{_key(key)} = {_value(value)}\n"
    for key, value in tables.items():
        name = heading + _key(key)
        yield f"\n[{name}]\n"
        yield from _lines(value, f"{name}.")
    for key, rows in lists.items():
        name = heading + _key(key)
        for row in rows:
            yield f"\n[[{name}]]\n"
            yield from _lines(row, f"{name}.")


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    return tomlkit.item(value).as_string()


def _lists_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _key(name: str) -> str:
    return tomlkit.key([name]).as_string()


def write_toml(path: Path, values: Mapping[str, Any]) -> None:
    """Create the folder and write the file atomically."""
    text = toml_text(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
