"""Find the line of each key in a TOML text, which tomllib does not report."""

import re

from sd_scripts.formats.documents import split_lines

HEADING = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?$")
KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
TEXTS = ('"""', "'''")


def key_lines(text: str) -> dict[str, int]:
    """Return the 1-based line of each key and heading of a TOML text, by paths like `datasets[0].subsets[1].flip_aug`.

    Keys inside inline tables are not found.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table, until = "", ""
    for number, line in enumerate(split_lines(text), 1):
        if until:  # inside a multi-line string
            until = "" if until in line else until
        elif heading := HEADING.match(line):
            table = _table_path(_parts(heading[2]), counts, is_list=heading[1] == "[[")
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault(".".join([*[table] * bool(table), *_parts(key[1])]), number)
            value = line[key.end() :]
            until = next((quotes for quotes in TEXTS if value.count(quotes) == 1), "")
    return lines


def line_of(path: str, lines: dict[str, int]) -> int | None:
    """Return the line of a key, or of the nearest table around it."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _table_path(parts: list[str], counts: dict[str, int], *, is_list: bool) -> str:
    """Return the path of the latest table of a name: `datasets[2].subsets[0]` for `datasets.subsets`."""
    path = ""
    for place, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        if is_list and place == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path
