"""Change captions in the text of a metadata file: everything else of it, spaces and unknown keys included, stays."""

import json
import re
from collections.abc import Iterator, Mapping
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple

from sd_scripts.formats.documents import parse_json, split_lines, what_and_where

SPACE = re.compile(r"[ \t\n\r]*")
WORDS = ("caption", "tags")
EMPTY = b'""'
"""The JSON of an empty caption."""
_DECODER = json.JSONDecoder()
Name = tuple[str, str]
"""Key of an entry, and caption or tags."""


class Span(NamedTuple):
    start: int
    end: int
    is_new: bool
    """Whether the entry has no such word yet; its key then goes here."""
    is_alone: bool = False
    """Whether the entry is empty, so that no comma follows."""


def entry_values(content: bytes, file: Path) -> dict[Name, bytes]:
    """Return each caption and each list of tags as JSON, EMPTY for one that an entry lacks. Raises ValueError, one
    sentence."""
    text = _text(content, file)
    return {name: text[span.start : span.end].encode() or EMPTY for name, span in _spans(text, file).items()}


def with_values(content: bytes, file: Path, values: Mapping[Name, bytes | None]) -> bytes:
    """Return the file with these values, each as JSON.

    Raises ValueError, one sentence, for an entry that the file does not have.
    """
    text = _text(content, file)
    spans = _spans(text, file)
    for name in values:
        if name not in spans:
            raise ValueError(f"{file.name}: has no entry {name[0]!r}; merge the captions into it first")
    pieces = []
    last = 0
    for name, value in sorted(values.items(), key=lambda item: spans[item[0]].start):
        span = spans[name]
        written = (value or EMPTY).decode()
        if span.is_new:
            if value == EMPTY:
                continue
            written = f'"{name[1]}": {written}' + ("" if span.is_alone else ", ")
        pieces += [text[last : span.start], written]
        last = span.end
    changed = "".join([*pieces, text[last:]])
    _require_same_rest(text, changed, file)
    bom = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") else b""
    return bom + changed.encode()


def _text(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"'{file}' is not UTF-8 text; save it as UTF-8") from None


def _spans(text: str, file: Path) -> dict[Name, Span]:
    """Return where the captions and tags of all entries are; of those that an entry lacks, where they would go."""
    try:
        if file.suffix.lower() == ".jsonl":
            return dict(_of_lines(text))
        return dict(_of_table(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"'{file}' is not a metadata file: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, JSONDecodeError):
        return what_and_where(error)
    return str(error) if isinstance(error, ValueError) else "it must contain an entry for each image"


def _of_table(text: str) -> Iterator[tuple[Name, Span]]:
    parse_json(text)  # raises ValueError for what follows the table, and for one that is nested too deeply
    for key, start, _ in _members(text, _skip(text, 0)):
        yield from _of_entry(text, start, key)


def _of_lines(text: str) -> Iterator[tuple[Name, Span]]:
    for line in re.finditer(r"[^\r\n]+", text):
        if line[0].strip():
            start = _skip(text, line.start())
            yield from _of_entry(text, start, str(parse_json(line[0])["image_path"]))


def _of_entry(text: str, start: int, key: str) -> Iterator[tuple[Name, Span]]:
    members = list(_members(text, start))
    inside = start + 1
    yield from (((key, words), Span(inside, inside, True, not members)) for words in WORDS)
    yield from (((key, name), Span(first, last, False)) for name, first, last in members if name in WORDS)


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of each value of the object that begins at `start`."""
    if text[start : start + 1] != "{":
        raise TypeError
    place = _skip(text, start + 1)
    while text[place : place + 1] != "}":
        if text[place : place + 1] != '"':
            raise JSONDecodeError("Expecting a name in double quotes", text, place)
        name, place = _DECODER.raw_decode(text, place)
        place = _skip(text, place)
        if text[place : place + 1] != ":":
            raise JSONDecodeError("Expecting ':'", text, place)
        value = _skip(text, place + 1)
        _, place = _DECODER.raw_decode(text, value)
        yield name, value, place
        place = _skip(text, place)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif text[place : place + 1] != "}":
            raise JSONDecodeError("Expecting ',' or '}'", text, place)


def _skip(text: str, place: int) -> int:
    found = SPACE.match(text, place)
    return found.end() if found else place


def _require_same_rest(before: str, after: str, file: Path) -> None:
    """Raise ValueError if anything but captions and tags would change: the file then has a form not foreseen here."""
    if _rest(before, file) != _rest(after, file):
        raise ValueError(f"'{file}' cannot be changed without losing other parts of it; edit it by hand")


def _rest(text: str, file: Path) -> list[Any]:
    if file.suffix.lower() == ".jsonl":
        tables = [parse_json(line) for line in split_lines(text) if line.strip()]
    else:
        tables = list(parse_json(text).items())
    return [_without_words(table) for table in tables]


def _without_words(table: Any) -> Any:
    if isinstance(table, tuple):
        return table[0], _without_words(table[1])
    return {name: value for name, value in table.items() if name not in WORDS}
