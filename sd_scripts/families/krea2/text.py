"""Tokenize captions, and encode them to the states of twelve layers of Qwen3-VL, which Krea 2 reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import QWEN_VL_TEMPLATE, CaptionOutputs, padded_length
from sd_scripts.families.common.encoders.qwen3 import states_of
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.krea2.card import LONGEST

LAYERS = tuple(range(2, 36, 3))
"""Numbers of layers whose outputs are read, 2, 5, ..., 35."""
TEMPLATE = QWEN_VL_TEMPLATE(longest=LONGEST)
STATES, MASK = "qwen3_vl", "qwen3_vl_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, prefix + T), int64; T is the longest caption's length, rounded up in compiled runs.

    Captions longer than LONGEST tokens with the suffix are truncated, and keep the suffix.
    """
    (tokenizer,) = components.tokenizers
    prefix, suffix = TEMPLATE.prefix_length(components), tokenizer(TEMPLATE.suffix).input_ids
    texts = [f"{TEMPLATE.prefix}{caption.text}" for caption in captions]
    rows = tokenizer(texts, max_length=prefix + LONGEST - len(suffix), truncation=True).input_ids
    lengths = torch.tensor([len(row) + len(suffix) for row in rows])
    ids = torch.zeros(
        len(rows), prefix + padded_length(int(lengths.max()) - prefix, options.compiling), dtype=torch.int64
    )
    for number, row in enumerate(rows):
        ids[number, : lengths[number]] = torch.tensor([*row, *suffix])
    return {0: {"ids": ids, "mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return qwen3_vl (B, T, 12, C), 0 after the caption, in the encoder's dtype, and qwen3_vl_mask (B, T) bool, True
    where there is text; differentiable. Attention is causal, so padding, which follows, changes nothing before it."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device, prefix = encoder.embed_tokens.weight.device, TEMPLATE.prefix_length(components)
    ids, mask = (tokens[0][name].to(device) for name in ("ids", "mask"))
    valid = mask[:, prefix:].bool()
    states = torch.stack([each[:, prefix:] for each in states_of(encoder, ids, mask, LAYERS)], dim=2)
    return {STATES: states * valid[..., None, None], MASK: valid}


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin has the states that the transformer reads."""
    transformer: Any = components.denoiser
    states = (transformer.params.text_states, transformer.params.text_width)
    return OUTPUTS.cache_fits(components, tensors) and tuple(tensors[STATES].shape[-2:]) == states
