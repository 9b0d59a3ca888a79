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
from sd_scripts.library.text.weighted_prompt import parse_weights
from sd_scripts.options.dataset import CaptionOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.settings.checks.model_files import model_variant
from sd_scripts.settings.settings import Settings


def token_counts(limit: TextLimit | None, options: CaptionOptions, texts: Sequence[str]) -> dict[str, Any]:
    """Return `limit`, the `remedy` for longer captions, and for each line of each text its `tokens` and how many of its
    `letters` are read. Prefix and suffix of the options count too. A family without a limit has none of these."""
    if limit is None:
        return {"limit": None, "remedy": "", "lines": []}
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


def tokens_read(settings: Settings, texts: Sequence[str]) -> dict[str, Any]:
    """Return the tokens of texts as each text encoder of the family reads them: `encoders`, each with its name and the
    `most` tokens that it reads of a text, None if it reads all; and `texts`, each with the `text` that is tokenized and
    for each encoder the [start, end] of its `tokens`, those that are cut off too."""
    card = card_of(settings.script.family)
    family = family_of(settings.script.family)
    tokenizers = _tokenizers(settings.script.family, *_source_of(settings[ModelOptions]))
    limit = card.text_limit(settings, model_variant(settings[ModelOptions])) if card.text_limit else None
    most = family.text.reads(limit.tokens) if limit else (None,) * len(tokenizers)
    components = [
        each for each in card.files.components if each.name in family.layouts and family.layouts[each.name].tokenizer
    ]
    names = [each.title.removeprefix("the ") or f"text encoder {n}" for n, each in enumerate(components, 1)]
    weighted = TextOptions.of(settings).weighted_captions
    split = [[part for part, _ in parse_weights(text)] if weighted else [text] for text in texts]
    return {
        "encoders": [{"name": name, "most": each} for name, each in zip(names, most, strict=True)],
        "texts": [
            {"text": "".join(parts), "tokens": [_spans(tokenizer, parts) for tokenizer in tokenizers]}
            for parts in split
        ],
    }


def _spans(tokenizer: Any, parts: Sequence[str]) -> list[tuple[int, int]]:
    """Return where in the joined texts each token begins and ends."""
    spans: list[tuple[int, int]] = []
    before = 0
    for part in parts:
        tokens = tokenizer(part, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        spans += [(before + start, before + end) for start, end in tokens.offset_mapping]
        before += len(part)
    return spans


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
    source, cache = _source_of(settings[ModelOptions])
    tokenizers = _tokenizers(settings.script.family, source, cache)
    components = Components(
        denoiser=nn.Module(), vae=nn.Module(), text_encoders=[], tokenizers=tokenizers, source=source
    )
    counting = family.text.limit(components, TextOptions.of(settings))
    known = card.text_limit(settings, model_variant(settings[ModelOptions]))
    return replace(counting, tokens=known.tokens, remedy=known.remedy)


def _source_of(model: ModelOptions) -> tuple[Path, str | None]:
    return Path(model.pretrained_model_name_or_path or "").expanduser(), model.tokenizer_cache_dir


@lru_cache(maxsize=2)  # to make them takes up to 4 s
def _tokenizers(name: str, source: Path, tokenizer_cache_dir: str | None) -> Sequence[Any]:
    """Return the tokenizers next to a model, in tokenizer_cache_dir or in this package, of the usual vocabularies."""
    layouts = family_of(name).layouts
    sizes = {part: layout.tokenizer.size for part, layout in layouts.items() if layout.tokenizer}
    return load_tokenizers(card_of(name), layouts, sizes, source, tokenizer_cache_dir)
