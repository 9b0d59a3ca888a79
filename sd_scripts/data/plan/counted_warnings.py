"""Warnings about a dataset: those that repeat are counted instead, since a file may list thousands of folders."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Warn = Callable[[str], None]
MOST_ALIKE = 10
"""Warnings that differ only in names, paths and numbers, and are all passed on."""
WORD = re.compile(r"'[^']*'|\S+")


@contextmanager
def counted_warnings(warn: Warn) -> Iterator[Warn]:
    """Yield a function that takes warnings; pass each on once, with how often it came, when the context ends."""
    texts: Counter[str] = Counter()
    try:
        yield lambda text: texts.update([text])
    finally:
        alike: dict[str, list[str]] = {}
        for text in texts:
            alike.setdefault(WORD.sub(_unless_varying, text), []).append(text)
        skipped = {text for group in alike.values() for text in group[MOST_ALIKE:]}
        for text, times in texts.items():
            if text not in skipped:
                warn(f"{text} ({times:,} times)" if times > 1 else text)
        for group in alike.values():
            if more := group[MOST_ALIKE:]:
                warn(f"{sum(texts[text] for text in more):,} more warnings like this one: {group[0]}")


def _unless_varying(word: re.Match[str]) -> str:
    """Return a word unless it is a name, a path, a number, or the text's subject."""
    text = word[0]
    is_subject = word.start() == 0 and text.endswith(":")
    return "" if is_subject or text[0] == "'" or any(letter.isdigit() or letter in "/\\" for letter in text) else text
