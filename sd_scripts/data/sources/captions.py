"""Turn an image's caption file text into the training caption, in the same order of operations as sd-scripts."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from sd_scripts.options.dataset import VARY_CAPTIONS

UNUSED_ALONE = ("caption_separator", "keep_tokens", "keep_tokens_separator", "token_warmup_min")
"""Fields that change no caption on their own."""
_OPEN, _CLOSE = "\0open\0", "\0close\0"
"""Placeholders for `{{` and `}}` while wildcards are resolved."""


@dataclass(frozen=True, kw_only=True)
class CaptionRules:
    """A subset's caption options; fields are named like the options."""

    caption_prefix: str | None = None
    caption_suffix: str | None = None
    caption_dropout_rate: float = 0.0
    caption_dropout_every_n_epochs: int = 0
    enable_wildcard: bool = False
    shuffle_caption: bool = False
    caption_separator: str = ","
    keep_tokens: int = 0
    keep_tokens_separator: str = ""
    token_warmup_min: int = 1
    token_warmup_step: float = 0
    """Below 1 it is a fraction of max_train_steps."""
    caption_tag_dropout_rate: float = 0.0
    secondary_separator: str | None = None
    templates: tuple[str, ...] = ()
    """Captions that replace the image's own, one at random (textual inversion)."""

    def random_fields(self) -> list[str]:
        """Return the active options that vary a caption between steps, so that it cannot be encoded ahead."""
        return [name for name in VARY_CAPTIONS if getattr(self, name)]


@dataclass(frozen=True)
class Caption:
    """What text encoders read of a sample: the processed text and, for those that see them, its control images."""

    text: str
    images: tuple[Path, ...] = ()
    flipped: bool = False
    """Whether the images are flipped left to right."""
    version: object = None
    """Differs for images whose files have changed."""


def process_caption(
    caption: str, rules: CaptionRules, random: Random, *, epoch: int, step: int, max_train_steps: int
) -> str:
    """Return the caption of one image in one step. `epoch` counts from 1, `step` from 0.

    Prefix and suffix are added first, so a line picked from several carries at most one of them, as in sd-scripts.
    """
    caption = " ".join(part for part in (rules.caption_prefix, caption, rules.caption_suffix) if part)
    if _is_dropped(rules, random, epoch):
        return ""
    caption = _choose(caption, random) if rules.enable_wildcard else caption.split("\n", 1)[0]
    if rules.shuffle_caption or rules.token_warmup_step > 0 or rules.caption_tag_dropout_rate > 0:
        glue = f"{rules.caption_separator.rstrip()} "
        caption = glue.join(_pick_parts(caption, rules, random, step, max_train_steps))
    if rules.secondary_separator:
        caption = caption.replace(rules.secondary_separator, rules.caption_separator)
    return random.choice(rules.templates) if rules.templates else caption


def whole_captions(captions: Iterable[str], rules: CaptionRules) -> Iterator[list[str]]:
    """Yield each caption as it is processed if nothing is dropped, in any order: with enable_wildcard, each of its
    lines."""
    whole = replace(
        rules,
        shuffle_caption=rules.shuffle_caption and bool(rules.keep_tokens_separator),  # which it removes
        caption_dropout_rate=0,
        caption_dropout_every_n_epochs=0,
        token_warmup_step=0,
        caption_tag_dropout_rate=0,
    )
    if whole == CaptionRules(**{name: getattr(whole, name) for name in UNUSED_ALONE}):
        yield from ([caption.split("\n", 1)[0]] for caption in captions)  # a dataset may have 100,000
        return
    random = Random(0)
    for caption in captions:
        lines = caption.split("\n") if rules.enable_wildcard else [caption]
        yield [process_caption(line, whole, random, epoch=1, step=0, max_train_steps=0) for line in lines]


def _is_dropped(rules: CaptionRules, random: Random, epoch: int) -> bool:
    if rules.caption_dropout_rate > 0 and random.random() < rules.caption_dropout_rate:
        return True
    return rules.caption_dropout_every_n_epochs > 0 and epoch % rules.caption_dropout_every_n_epochs == 0


def _choose(caption: str, random: Random) -> str:
    """Pick a random line, then a random alternative of each `{a|b|c}`; `{{` and `}}` are literal braces."""
    lines = caption.split("\n")
    line = random.choice(lines) if len(lines) > 1 else lines[0]
    line = line.replace("{{", _OPEN).replace("}}", _CLOSE)
    # the closing brace is optional so that a text of many opening ones is read once
    line = re.sub(r"\{([^}]+)(\}?)", lambda f: random.choice(f[1].split("|")) if f[2] else f[0], line)
    return line.replace(_OPEN, "{").replace(_CLOSE, "}")


def _pick_parts(caption: str, rules: CaptionRules, random: Random, step: int, max_train_steps: int) -> list[str]:
    """Return the fixed head, the tags that survive warmup, shuffle and dropout, and the fixed tail."""
    head, parts, tail = _split(caption, rules)
    warmup = rules.token_warmup_step
    if 0 < warmup < 1:
        warmup = math.floor(warmup * max_train_steps)
    if step < warmup:
        parts = parts[: math.floor(step * (len(parts) - rules.token_warmup_min) / warmup) + rules.token_warmup_min]
    if rules.shuffle_caption:
        random.shuffle(parts)
    if rules.caption_tag_dropout_rate > 0:
        parts = [part for part in parts if random.random() >= rules.caption_tag_dropout_rate]
    return head + parts + tail


def _split(caption: str, rules: CaptionRules) -> tuple[list[str], list[str], list[str]]:
    """Split a caption into the tags kept first, the flexible ones, and the tags kept last."""
    if rules.keep_tokens_separator and rules.keep_tokens_separator in caption:
        head, flexible, *tail = caption.split(rules.keep_tokens_separator, 2)
        return _parts(head, rules), _parts(flexible, rules), _parts(tail[0], rules) if tail else []
    parts = [part.strip() for part in caption.strip().split(rules.caption_separator)]
    return parts[: rules.keep_tokens], parts[rules.keep_tokens :], []


def _parts(text: str, rules: CaptionRules) -> list[str]:
    return [part.strip() for part in text.split(rules.caption_separator) if part.strip()]
