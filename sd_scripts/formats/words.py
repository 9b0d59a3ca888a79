"""Split and join lists of words: quoted as in a shell, or listed in a message."""

import shlex
from collections.abc import Sequence


def shell_words(text: str) -> list[str]:
    """Split `a "b c"` into ["a", "b c"]; a backslash is a plain character. An open quote raises ValueError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    return list(lexer)


def some(names: Sequence[str], most: int = 3) -> str:
    """List the first names: a, b, c and 7 more"""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


LONGEST_SENTENCE = 600


def shortened(sentence: str) -> str:
    """Cut out the middle of a sentence that quotes an overlong text."""
    if len(sentence) <= LONGEST_SENTENCE:
        return sentence
    return f"{sentence[:300]} ... {sentence[-250:]}"
