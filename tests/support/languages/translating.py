"""The rules by which language.js finds the translation of a text, to test the catalogues without a browser."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import chain

VALUE = re.compile(r"\{\w+[!?#]?\}|`[^`]+`|\b[a-z0-9]+(?:_[a-z0-9]+)+\b")
COUNTED = re.compile(
    r"^ (byte|image|caption|tag|clip|frame|step|epoch|repeat|run|file|prompt|setting|problem|bucket|block|graph|group"
    r"|crop|mask|token|layer|line|sample|size|state|tensor|video|warning)s\b"
)
NAME = re.compile(r"[^a-z]+|[A-Za-z]*[A-Z\d][\w.-]*")
VALUES = "((?:(?![.!?] [A-Z]).)+?)"
FIRST = "((?:(?!; |[.!?] [A-Z]).)+?)"
MAYBE = VALUES.replace("+?", "*?")
KEY = r"(`[^`]+`|\*[^*]+\*|[\w.-]*_[\w.-]*)"
WORD = re.compile("[A-Za-z]{2,}")
PROSE = re.compile(r"(?:^|\s)[A-Za-z][a-z]+ [a-z]{2,} [a-z]{2,}")
WORDS = re.compile(rf"^(?!s$)[a-z]+(?=[\s),;:.]|$)| (?:for|from|in|of|with) |{PROSE.pattern}")
OPEN = re.compile(r"""(?:['"(]|: )$""")
SENTENCES = re.compile(r"(?<=[.!?]) (?=\S)|\n")


class Translating:
    """Whether texts are in a catalogue, as a whole or in parts."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = set(texts)
        self._patterns: dict[str, list[tuple[str, str, re.Pattern[str], list[int], list[int]]]] = {}
        """The word that the fewest texts with values have, or an empty text -> those with it, as in language.js."""
        words_of = {english: _own_words(english) for english in texts if VALUE.search(english)}
        uses = Counter(chain.from_iterable(words_of.values()))
        for english, words in words_of.items():
            inner, plain = _inner(english, texts[english]), _plain(english, texts[english])
            pattern = english, _longest(english), _pattern(english), inner, plain
            self._patterns.setdefault(min(words, key=lambda word: uses[word], default=""), []).append(pattern)
        self.used: set[str] = set()
        """Texts of the catalogue that were found."""
        self.knows = cache(self._knows)

    def _knows(self, text: str) -> bool:
        return self._whole(text) or self._sentences(text) or self._list(text)

    def _whole(self, text: str) -> bool:
        if text in self._texts:
            self.used.add(text)
            return True
        found = [each for word in {"", *WORD.findall(text)} for each in self._patterns.get(word, ())]
        for english, words, pattern, inner, plain in sorted(
            found, key=lambda each: len(VALUE.sub("", each[0])), reverse=True
        ):
            match = pattern.fullmatch(text) if words in text else None
            if (
                match
                and all(self.knows(match[n].strip()) or not WORDS.search(match[n]) for n in inner)
                and not any(PROSE.search(re.sub("'[^']*'", "", match[n])) for n in plain)
            ):
                self.used.add(english)
                return True
        return False

    def _sentences(self, text: str) -> bool:
        parts = SENTENCES.split(text)
        start = 0
        while start < len(parts):
            ends = range(len(parts), start, -1)
            end = next(
                (end for end in ends if end - start < len(parts) and self._ended(" ".join(parts[start:end]))), None
            )
            if end is None:
                return False
            start = end
        return True

    def _ended(self, text: str) -> bool:
        return self._whole(text) or (text.endswith(".") and self._whole(text[:-1]))

    def _list(self, text: str) -> bool:
        if " · " in text:
            return all(self.knows(part) or not re.search("[a-z]{3}", part) for part in text.split(" · "))
        parts = next((text.split(mark) for mark in ("; ", ", ") if mark in text), ())
        return bool(parts) and all(self.knows(part) or NAME.fullmatch(part) for part in parts)


def _own_words(english: str) -> list[str]:
    """Return the words that each text of this pattern has: those next to a value may be half of a word."""
    parts = [COUNTED.sub("", part) for part in VALUE.split(english)]
    return [
        word[0]
        for number, part in enumerate(parts)
        for word in WORD.finditer(part)
        if (word.start() or not number) and (word.end() < len(part) or number == len(parts) - 1)
    ]


def _longest(english: str) -> str:
    """Return words that a text must contain: comparing these first is quick."""
    return max((words for words in VALUE.split(english) if not COUNTED.search(words)), key=len)


def _inner(english: str, translation: str) -> list[int]:
    """Return the numbers of the values that are translated too."""
    names = [name[0] for name in VALUE.finditer(english)]
    return [n for n, name in enumerate(names, 1) if name[0] == "{" and name.replace("}", "!}") in translation]


def _plain(english: str, translation: str) -> list[int]:
    """Return the numbers of the values that stay as they are, and stand where none may be a sentence."""
    left = [name[0] in VALUE.findall(translation) for name in VALUE.finditer(english)]
    return [n for n, part in enumerate(VALUE.split(english)[:-1], 1) if left[n - 1] and not OPEN.search(part)]


def _pattern(english: str) -> "re.Pattern[str]":
    first, *rest = VALUE.split(english)
    parts = [re.escape(first)]
    before = None
    for value, text in zip(VALUE.findall(english), rest, strict=True):
        counted = COUNTED.search(text) if value[0] == "{" else None
        words = re.escape(text)
        if counted:
            words = words.replace(re.escape(f" {counted[1]}s"), re.escape(f" {counted[1]}") + "s?", 1)
        joined = before is not None and re.search(r"^$|[^\s\"'(:=]$", before)
        kind = FIRST if before is None and not first else VALUES
        if counted:
            kind = r"([\d.,]+(?: to [\d.,]+)?|\{\d+\})"
        elif value[0] != "{":
            kind = KEY
        elif joined:
            kind = MAYBE
        start = r"(?<!\d(?=\d))" if before == "" else ""
        parts.append(f"{start}{kind}{words}")
        before = text
    return re.compile("".join(parts), re.DOTALL)


def own_values(text: str) -> list[str]:
    """Return the values, texts in backticks and keys in a text of the catalogue."""
    return [re.sub(r"[!?#]\}$", "}", value) for value in VALUE.findall(text)]
