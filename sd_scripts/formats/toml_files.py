"""Reads and writes settings as TOML files: flat, in a fixed order, written atomically."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomlkit

from sd_scripts.formats import documents
from sd_scripts.formats.atomic_files import write_whole

KEPT_TABLES = "tables"
"""The heading of the unknown tables of a file that is written again, since reading removes one level of headings."""


NO_HEADINGS: Mapping[str, str] = MappingProxyType({})


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


def toml_text(values: Mapping[str, Any], headings: Mapping[str, str] = NO_HEADINGS) -> str:
    """Return the values as TOML, sorted by name; None, which TOML does not have, is left out.

    Those that `headings` names follow the others, in its order and with their headings as comments.
    """
    plain = {key: values[key] for key in sorted(values) if values[key] is not None}
    tables = {key: plain.pop(key) for key in list(plain) if isinstance(plain[key], dict)}
    last = {key: plain.pop(key) for key in list(plain) if _lists_tables(plain[key])}
    last |= {KEPT_TABLES: tables} if tables else {}  # what follows a table would belong to it
    sections: dict[str, dict[str, Any]] = {}
    for name, heading in headings.items():
        if name in plain:
            sections.setdefault(heading, {})[name] = plain.pop(name)
    below = (f"\n# {heading}\n{''.join(_lines(section))}" for heading, section in sections.items())
    return "".join([*_lines(plain), *below, *_lines(last)])


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
    return str(tomlkit.item(value).as_string())


def _lists_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _key(name: str) -> str:
    return tomlkit.key([name]).as_string()


def write_toml(path: Path, values: Mapping[str, Any], headings: Mapping[str, str] = NO_HEADINGS) -> None:
    """Create the folder and write the file atomically, as `toml_text` has it."""
    text = toml_text(values, headings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
