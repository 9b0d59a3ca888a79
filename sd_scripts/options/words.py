"""Texts that hold several words: quoted as in a shell, or told to a reader."""

import shlex
from collections.abc import Sequence


def shell_words(text: str) -> list[str]:
    """`a "b c"` -> ["a", "b c"]. A backslash is a letter, as in Windows' paths. Raises ValueError at an open quote."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    return list(lexer)


def some(names: Sequence[str]) -> str:
    """The first three: a, b, c and 7 more"""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


LONGEST_SENTENCE = 600


def shortened(sentence: str) -> str:
    """A sentence that quotes somebody's endless text, without its middle."""
    if len(sentence) <= LONGEST_SENTENCE:
        return sentence
    return f"{sentence[:300]} ... {sentence[-250:]}"
