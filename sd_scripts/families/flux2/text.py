"""Tokenize captions, and encode them to the states of three layers of Qwen3, which FLUX.2 klein reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.qwen3 import states_of
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.flux2.card import LONGEST
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.tokenizers import are_shipped

LAYERS = (9, 18, 27)
"""Numbers of layers whose outputs are joined along the width."""
PREFIX, SUFFIX = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The text around a caption: Qwen3's chat template without thinking."""
STATES = "qwen3"


def text_length(components: Components) -> int:
    """Return the number of tokens T that every caption is padded or truncated to: 512, or the tokenizer's maximum if
    that is less."""
    if are_shipped(components.tokenizers):  # ours has no maximum, and takes half a second to make
        return LONGEST
    (tokenizer,) = components.tokenizers
    return min(LONGEST, int(tokenizer.model_max_length))


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64. Longer captions are truncated."""
    (tokenizer,) = components.tokenizers
    texts = [f"{PREFIX}{caption.text}{SUFFIX}" for caption in captions]
    length = text_length(components)
    tokens = tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return {0: {"ids": tokens.input_ids, "mask": tokens.attention_mask}}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return qwen3 (B, T, 3C) in the encoder's dtype; differentiable. The transformer reads the states of the padding
    too, which see the caption alone."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.embed_tokens.weight.device
    ids, mask = (tokens[0][name].to(device) for name in ("ids", "mask"))
    return {STATES: torch.cat(states_of(encoder, ids, mask, components.extras["layers"]), dim=-1)}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length of a caption with the text around it."""

    def count(captions: Sequence[str]) -> list[int]:
        (tokenizer,) = components.tokenizers
        return [
            len(ids) for ids in tokenizer([f"{PREFIX}{each}{SUFFIX}" for each in captions], verbose=False).input_ids
        ]

    longest = text_length(components)
    return TextLimit(tokens=longest, count=count, short=longest - len(PREFIX) - len(SUFFIX))


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides the encoder that changes the outputs."""
    return (text_length(components), components.extras["layers"])


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is as long and wide as the transformer's input."""
    transformer: Any = components.denoiser
    expected = (text_length(components), transformer.params.text_width)
    return STATES in tensors and tuple(tensors[STATES].shape[-2:]) == expected
