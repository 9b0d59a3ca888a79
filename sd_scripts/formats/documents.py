"""Read JSON and TOML from any source: every problem with a file or text is a ValueError with one sentence."""

import json
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sd_scripts.formats.words import shortened

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 512 * 2**20
"""Bytes: no legitimate file is larger, and a larger one would fill the memory."""
DEEPEST = 64
"""Levels of tables and lists: no legitimate file has more, and code that descends into them would run out of stack."""
TOO_DEEP = "it is nested too deeply"
TOO_LONG = "it has a number of more digits than can be read"
DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST}}}""")
"""A dotted key of too many parts: tomllib's time and memory for it grow with their square."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for anything else, including deeply nested brackets."""
    try:
        return _read(json.loads, text, json.JSONDecodeError)
    except json.JSONDecodeError as error:
        raise ValueError(what_and_where(error)) from None


def what_and_where(error: json.JSONDecodeError) -> str:
    """Return the problem of JSON and its place, in the words of tomllib."""
    problem = error.msg.removesuffix(" at").removesuffix(" starting")
    return f"{problem} (at line {error.lineno}, column {error.colno})"


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for anything else, including deeply nested brackets and dotted keys."""
    if DEEP_KEY.search(text):
        raise ValueError(TOO_DEEP)
    return dict(_read(tomllib.loads, text, tomllib.TOMLDecodeError))


def _read(parse: Callable[[Any], Any], text: str | bytes, wrong: type[ValueError]) -> Any:
    try:
        parsed = parse(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (wrong, UnicodeDecodeError):
        raise
    except ValueError:  # of int
        raise ValueError(TOO_LONG) from None
    _require_shallow(parsed)
    return parsed


def _require_shallow(parsed: Any) -> None:
    level = [parsed]
    for _ in range(DEEPEST + 1):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [inner for values in within for inner in values if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def is_utf8(text: str) -> bool:
    """Return whether a text can be saved and sent as UTF-8: half a surrogate pair, as JSON can name it, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises ValueError, phrased to follow an option's name."""
    check_name(path)
    try:
        state = path.stat()
        if stat.S_ISDIR(state.st_mode):
            raise ValueError(f"'{path}' is a folder; name a file")
        if not stat.S_ISREG(state.st_mode):  # reading a pipe would block forever
            raise ValueError(f"'{path}' is not a regular file")
        if state.st_size > LARGEST:
            raise ValueError(f"'{path}' has {state.st_size:,} bytes; the maximum is {LARGEST:,}")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"file not found: '{path}'") from None
    except OSError as error:
        raise ValueError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"'{path}' is not UTF-8 text; save it as UTF-8") from None


def split_lines(text: str) -> list[str]:
    """Split a text at line ends. str.splitlines also splits at U+2028, U+0085, form feeds and others, which captions
    and prompts contain."""
    return re.split(r"\r\n|\r|\n", text)


def filled_lines(text: str) -> list[str]:
    """Return the lines of a text that are not empty, without the blanks around them."""
    text = text.strip()
    if "\n" not in text and "\r" not in text:  # as most of 100,000 captions are
        return [text] if text else []
    return [line.strip() for line in split_lines(text) if line.strip()]


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError, phrased to follow an option's name."""
    return _parsed(path, parse_json, "JSON")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ValueError, phrased to follow an option's name."""
    document: dict[str, Any] = _parsed(path, parse_toml, "TOML")
    return document


def _parsed(path: Path, parse: Callable[[str], Any], format: str) -> Any:
    text = read_text(path)
    try:
        return parse(text)
    except ValueError as error:
        hint = _backslash_hint(text, str(error)) if format == "TOML" else ""
        raise ValueError(f"'{path}' is not {format}: {error}{hint}") from None


def _backslash_hint(text: str, error: str) -> str:
    """Return how to write a Windows path if the line of an error has one in double quotes; else an empty text."""
    place = re.search(r"at line (\d+)", error)
    line = text.split("\n")[int(place[1]) - 1] if place else ""
    found = re.search(r'"([^"]*\\[^"]*)"', line)
    return f"; {IN_SINGLE_QUOTES.format(shortened(found[1]))}" if found else ""


def read_document(path: Path) -> Any:
    """Parse a JSON or TOML file, by its extension. Raises ValueError as read_json and read_toml do."""
    return read_json(path) if path.suffix.lower() == ".json" else read_toml(path)


LONGEST_PART, LONGEST_PATH = 255, 4095
"""Bytes that Linux allows for a file name and for a path; Windows and macOS allow no more."""


IN_SINGLE_QUOTES = "write '{}' in single quotes, or / for \\"
"""What to do with a path in double quotes, in which TOML reads a backslash as the start of an escape."""
CONTROL = re.compile(r"[\0-\x1f\x7f]")
ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", "\x1b": "\\e"}


def check_name(path: Path | str) -> None:
    """Raise ValueError, phrased to follow an option's name, for an impossible file name."""
    if problem := name_problem(str(path)):
        raise ValueError(problem)


def name_problem(path: str) -> str:
    """Return why no file can have this path, phrased to follow an option's name; "" if one can."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return f"{path!r} is not UTF-8 text; rename the file"
    if CONTROL.search(path):
        shown = path if len(path) <= 80 else path[:80] + "..."
        meant = "".join(ESCAPES.get(letter, letter) for letter in shown)
        remedy = IN_SINGLE_QUOTES.format(meant) if "\\" in meant else "retype the path"
        return f"{shown!r} contains a control character, which a path cannot have; {remedy}"
    if len(encoded) > LONGEST_PATH:
        return f"a path of {len(encoded):,} bytes is too long; the maximum is {LONGEST_PATH:,}"
    longest = max(len(part.encode()) for part in path.replace("\\", "/").split("/"))
    if longest > LONGEST_PART:
        return f"a name of {longest:,} bytes is too long; the maximum is {LONGEST_PART}"
    return ""
