"""How much of a caption a text encoder reads, and a remark about captions that are cut."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sd_scripts.formats.words import counted, some

Key = TypeVar("Key", bound=Hashable)
AT_ONCE, MOST = 2_000, 20_000
"""Texts that are counted together, and in all."""
SHOWN = 60
"""Letters of a prompt that name it."""


def count_words(texts: Sequence[str]) -> list[int]:
    """Return the words of each text: no tokenizer makes fewer tokens of them."""
    return [len(text.split()) for text in texts]


@dataclass(frozen=True, kw_only=True)
class TextLimit:
    """The length at which captions are cut. A card's counts words, so that a plan needs no tokenizer; a family has its
    `count` replaced."""

    tokens: int
    remedy: str = ""
    """What else to do about longer captions than to shorten them: "set max_token_length = 225"."""
    count: Callable[[Sequence[str]], list[int]] = count_words
    """Captions -> tokens of each, uncut."""
    short: int | None = None
    """Bytes of a caption that surely fits, so that it need not be counted; None: as `count_words` counts."""

    def caption_remark(self, captions: Iterable[tuple[Path, str]]) -> str | None:
        """Return a sentence about the captions that are cut, longest first; None if there are none.

        `captions` are of images. If an image has several, the longest counts.
        """
        return self._remark("caption", captions, lambda image: image.name)

    def prompt_remark(self, prompts: Iterable[str]) -> str | None:
        """Return the same about prompts, named by how they start."""
        return self._remark("prompt", ((prompt, prompt) for prompt in prompts if prompt), _start)

    def _remark(self, kind: str, texts: Iterable[tuple[Key, str]], name: Callable[[Key], str]) -> str | None:
        keys, long = [], []
        for key, text in texts:
            keys.append(key)
            if self._may_be_cut(text):
                long.append((key, text))
        if not long:
            return None
        counts = self._counts(sorted({text for _, text in long}, key=len, reverse=True))
        lengths: dict[Key, int] = dict.fromkeys(keys, 0)
        for key, text in long:
            lengths[key] = max(lengths[key], counts.get(text, 0))
        cut = sorted((key for key in lengths if lengths[key] > self.tokens), key=lambda key: -lengths[key])
        if not cut:
            return None
        number = f"At least {len(cut)}" if self.count is count_words or len(counts) >= MOST else str(len(cut))
        words = "at least " if self.count is count_words else ""
        total = counted(len(lengths), kind)
        listed = some([f"{name(key)} ({words}{lengths[key]} tokens)" for key in cut])
        if len(cut) == 1:
            sentence = f"{number} of {total} is longer than {self.tokens} tokens and is cut: {listed}; shorten it"
        else:
            sentence = f"{number} of {total} are longer than {self.tokens} tokens and are cut: {listed}; shorten them"
        return sentence + (f", or {self.remedy}" if self.remedy else "")

    def _counts(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the tokens of texts, longest first, up to those that fit: 100,000 that fit cost little."""
        counts: dict[str, int] = {}
        for start in range(0, min(len(texts), MOST), AT_ONCE):
            batch = texts[start : start + AT_ONCE]
            counts.update(zip(batch, self.count(batch), strict=True))
            if max(counts[text] for text in batch) <= self.tokens:
                break
        return counts

    def _may_be_cut(self, text: str) -> bool:
        short = 2 * self.tokens if self.short is None else self.short  # a word has a letter and a blank
        return len(text.encode(errors="replace")) > short


def _start(prompt: str) -> str:
    return repr(prompt if len(prompt) <= SHOWN else f"{prompt[:SHOWN]}...")
