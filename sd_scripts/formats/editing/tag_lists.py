"""Tags of a caption as a list: which are the same, and how one is spelled."""

import re
from collections.abc import Sequence

TWO_LETTERS = re.compile(r"[^\W_]{2}")
"""Words have them; emoticons such as o_o and ^_^, whose underscore stays, do not."""


def split_tags(line: str, separator: str) -> list[str]:
    return [tag for part in line.split(separator) if (tag := part.strip())]


def without_repeats(tags: Sequence[str]) -> list[str]:
    firsts: dict[str, str] = {}
    for tag in tags:
        firsts.setdefault(tag.casefold(), tag)
    return [*firsts.values()]


def apart_from(tags: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the tags that are not among others."""
    known = {tag.casefold() for tag in others}
    return [tag for tag in tags if tag.casefold() not in known]


def with_spaces(tag: str) -> str:
    """Return a tag with spaces for underscores, unless it is an emoticon."""
    return tag.replace("_", " ") if TWO_LETTERS.search(tag) else tag
