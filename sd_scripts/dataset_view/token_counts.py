"""How many tokens of a caption the text encoder reads, and where it cuts: by the tokenizers and limits of training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import TextOptions, family_of
from sd_scripts.families.common.opening import load_tokenizers
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.dataset import CaptionOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.settings.checks.model_files import model_variant
from sd_scripts.settings.settings import Settings


def token_counts(settings: Settings, texts: Sequence[str]) -> dict[str, Any]:
    """Return `limit`, the `remedy` for longer captions, and for each line of each text its `tokens` and how many of its
    `letters` are read. Prefix and suffix of the settings count too. A family without a limit has none of these."""
    limit = limit_of(settings)
    if limit is None:
        return {"limit": None, "remedy": "", "lines": []}
    options = settings[CaptionOptions]
    before = f"{options.caption_prefix} " if options.caption_prefix else ""
    after = f" {options.caption_suffix}" if options.caption_suffix else ""
    lines = [text.split("\n") for text in texts]
    counts = iter(limit.count([f"{before}{line}{after}" for within in lines for line in within]))

    def counted(line: str) -> dict[str, int]:
        tokens = next(counts)
        letters = len(line) if tokens <= limit.tokens else letters_read(before + line, limit.count, limit.tokens)
        return {"tokens": tokens, "letters": max(0, letters - (len(before) if tokens > limit.tokens else 0))}

    return {
        "limit": limit.tokens,
        "remedy": limit.remedy,
        "lines": [[counted(line) for line in within] for within in lines],
    }


def letters_read(text: str, count: Callable[[Sequence[str]], list[int]], most: int) -> int:
    """Return the letters of the longest start of a text that has at most this many tokens."""
    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count([text[:middle]])[0] <= most:
            fits = middle
        else:
            too_long = middle
    return fits


def limit_of(settings: Settings) -> TextLimit | None:
    """Return the limit of the family's text encoder as training counts it, without its weights."""
    family = family_of(settings.script.family)
    card = card_of(settings.script.family)
    if card.text_limit is None or family.text.limit is None:
        return None
    model = settings[ModelOptions]
    source = Path(model.pretrained_model_name_or_path or "").expanduser()
    tokenizers = _tokenizers(settings.script.family, source, model.tokenizer_cache_dir)
    components = Components(
        denoiser=nn.Module(), vae=nn.Module(), text_encoders=[], tokenizers=tokenizers, source=source
    )
    counting = family.text.limit(components, TextOptions.of(settings))
    known = card.text_limit(settings, model_variant(model))
    return replace(counting, tokens=known.tokens, remedy=known.remedy)


@lru_cache(maxsize=2)  # to make them takes up to 4 s
def _tokenizers(name: str, source: Path, tokenizer_cache_dir: str | None) -> Sequence[Any]:
    """Return the tokenizers next to a model, in tokenizer_cache_dir or in this package, of the usual vocabularies."""
    layouts = family_of(name).layouts
    sizes = {part: layout.tokenizer.size for part, layout in layouts.items() if layout.tokenizer}
    return load_tokenizers(card_of(name), layouts, sizes, source, tokenizer_cache_dir)
