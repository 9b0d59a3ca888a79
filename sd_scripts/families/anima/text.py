"""Tokenize captions for Qwen3 and for the transformer's adapter, and encode them to Qwen3's states.

The adapter, which is trained in full training, turns states and T5 ids into text within the transformer, so caches
contain its inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.anima.card.options import LONGEST
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.compile import CompileOptions

STATES, MASK, IDS, IDS_MASK = "qwen3", "qwen3_mask", "t5_ids", "t5_mask"
MASK_OF = {STATES: MASK, MASK: MASK, IDS: IDS_MASK, IDS_MASK: IDS_MASK}
"""Output -> where it has text: Qwen3 and T5 divide a caption into different numbers of tokens."""
T5_TOKENIZER = "t5_tokenizer"
PADDED = {"padding": "max_length", "padding_side": "right"}


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and masks (B, 512) int64 of Qwen3 and of T5. Longer captions are truncated."""
    texts = [caption.text for caption in captions]
    tokens: dict[str, Tensor] = {}
    for tokenizer, ids, mask in zip(_tokenizers(components), ("ids", IDS), ("mask", IDS_MASK), strict=True):
        found = tokenizer(texts, return_tensors="pt", max_length=LONGEST, truncation=True, **PADDED)
        tokens |= {ids: found.input_ids, mask: found.attention_mask}
    return {0: tokens}


def _tokenizers(components: Components) -> tuple[Any, Any]:
    return components.tokenizers[0], components.extras[T5_TOKENIZER][0]


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return qwen3 (B, 512, C) in the encoder's dtype, 0 after the caption, t5_ids (B, 512) int64, and where they have
    text, qwen3_mask and t5_mask (B, 512) bool; differentiable."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.embed_tokens.weight.device
    ids, mask, t5_ids, t5_mask = (tokens[0][name].to(device) for name in ("ids", "mask", IDS, IDS_MASK))
    states = encoder(ids, use_cache=False).last_hidden_state  # causal: padding changes nothing before it
    there = mask.bool()
    there[:, 0] = True  # an empty caption has no token of Qwen3; a row of zeros adds nothing where one is needed
    return {STATES: states * mask[..., None], MASK: there, IDS: t5_ids, IDS_MASK: t5_mask.bool()}


def trim(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption without padding, as caches keep them."""
    return {name: tensor[: int(text[MASK_OF[name]].sum())] for name, tensor in text.items()}


def pad(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch, padded to 512 tokens, so that all steps have the same shapes."""
    ends = {name: (*[0] * 2 * (each.ndim - 2), 0, LONGEST - each.shape[1]) for name, each in text.items()}
    return {name: F.pad(each, ends[name]) for name, each in text.items()}


def limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length of a caption in the tokens that are more, mostly T5's."""

    def count(captions: Sequence[str]) -> list[int]:
        rows = [tokenizer(list(captions), verbose=False).input_ids for tokenizer in _tokenizers(components)]
        return [max(map(len, each)) for each in zip(*rows, strict=True)]

    return TextLimit(tokens=LONGEST, count=count)


def cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is complete, and as wide as the adapter's input."""
    transformer: Any = components.denoiser
    return tensors.keys() >= MASK_OF.keys() and tensors[STATES].shape[-1] == transformer.llm_adapter.params.states_width
