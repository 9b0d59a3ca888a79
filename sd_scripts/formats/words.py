"""Split and join lists of words: quoted as in a shell, or listed in a message."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Text = TypeVar("Text")


def shell_words(text: str) -> list[str]:
    """Split `a "b c"` into ["a", "b c"]; a backslash is a plain character. An open quote raises ValueError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    return list(lexer)


def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number of ASCII digits; Python's own tests accept the digits of all scripts."""
    return text.isascii() and text.isdecimal()


LONGEST_NAME = 200


def printable(name: str) -> str:
    """Return a name from a file as a message can quote it: in one line, without control characters, and without the
    middle of one that is too long."""
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 60]}...{name[-57:]}"
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)


def some(names: Sequence[str], most: int = 3) -> str:
    """List the first names: a, b, c and 7 more"""
    return ", ".join(map(printable, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def listed(names: Iterable[str], word: str = "and") -> str:
    """List all names: a, b and c"""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


MOST_LISTED = 20
"""Problems of one kind that are listed; finding more takes time, and nobody reads them."""


def first(problems: Iterable[Text], more: Text) -> Iterator[Text]:
    """Yield the first problems, and `more` instead of all others, which are not searched."""
    found = iter(problems)
    yield from itertools.islice(found, MOST_LISTED)
    if next(found, None) is not None:
        yield more


LONGEST_SENTENCE = 600


def shortened(sentence: str) -> str:
    """Cut out the middle of a sentence that quotes an overlong text."""
    if len(sentence) <= LONGEST_SENTENCE:
        return sentence
    return f"{sentence[:300]} ... {sentence[-250:]}"


def counted(count: int, what: str) -> str:
    """Return a number with its noun: "1 graph", "2,400 steps"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time in natural units: 140 ms, 31 s, 12 min, 3 h 20 min."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
