"""Tokenize captions, and encode them to the hidden states of UMT5, which Wan reads at a length of 512 tokens."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.wan.card import LONGEST
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.tokenizers import TokenizerKind
from sd_scripts.options.compile import CompileOptions

STATES = "t5"
TOKENS, ROWS = 256_300, 256_384
"""Tokens of UMT5's vocabulary, and rows of its embedding."""


UMT5 = TokenizerKind(
    name="T5Tokenizer",
    size=TOKENS,
    spare=ROWS - TOKENS,
    cache_folder="google_umt5-xxl",
    folders=("google/umt5-xxl",),
    hub="google/umt5-xxl",
)
"""Its vocabulary, 4.5 MB, is not in this package."""


def cleaned(text: str) -> str:
    """Return a caption as the model saw captions: without HTML entities and repeated white space."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64; T is the longest caption's length. Longer captions than LONGEST are
    truncated."""
    texts = [cleaned(caption.text) for caption in captions]
    tokens = components.tokenizers[0](
        texts, padding="longest", max_length=LONGEST, truncation=True, return_tensors="pt"
    )
    return {0: {"ids": tokens.input_ids, "mask": tokens.attention_mask}}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that UMT5 reads, end token included."""

    def count(captions: Sequence[str]) -> list[int]:
        return list(map(len, components.tokenizers[0]([cleaned(each) for each in captions], verbose=False).input_ids))

    return TextLimit(tokens=LONGEST, count=count, short=LONGEST - 2)  # a blank before the first word, the end token


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return t5 (B, T, 4096), 0 after the caption, in the encoder's dtype, and t5_mask (B, T) bool, True where there is
    text."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.shared.weight.device
    ids, mask = (tokens[0][name].to(device) for name in ("ids", "mask"))
    hidden = encoder(ids, attention_mask=mask).last_hidden_state
    return {STATES: hidden * mask[..., None], MASK: mask.bool()}


MASK = "t5_mask"


def trim_text(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption, (T, ...), without padding, as caches keep them."""
    length = int(text[MASK].sum())
    return {name: tensor[:length] for name, tensor in text.items()}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the states of a batch padded to the length that the transformer always reads: it attends to the padding,
    without a mask."""
    return {STATES: F.pad(text[STATES], (0, 0, 0, LONGEST - text[STATES].shape[1]))}


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides the encoder that changes the outputs."""
    return (LONGEST,)


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is complete and as wide as the transformer's input."""
    transformer: Any = components.denoiser
    fits = STATES in tensors and MASK in tensors
    return fits and tensors[STATES].shape[-1] == transformer.params.text_width
