"""Tokenize captions, and encode them to the states of twelve layers of Qwen3-VL, which Krea 2 reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate
from sd_scripts.families.common.encoders.qwen3 import states_of
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.krea2.card import LONGEST
from sd_scripts.options.compile import CompileOptions

LAYERS = tuple(range(2, 36, 3))
"""Numbers of layers whose outputs are read, 2, 5, ..., 35."""
PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
"""34 tokens with Qwen's vocabulary, as for Qwen-Image."""
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
TEMPLATE = CaptionTemplate(prefix=PREFIX, suffix=SUFFIX, longest=LONGEST)
STEP = 128
"""In compiled runs the number of text tokens is rounded up to a multiple of it, so that captions share graphs."""
STATES, MASK = "qwen3_vl", "qwen3_vl_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, prefix + T), int64; T is the longest caption's length, rounded up in compiled runs.

    Captions longer than LONGEST tokens with the suffix are truncated, and keep the suffix.
    """
    (tokenizer,) = components.tokenizers
    prefix, suffix = TEMPLATE.prefix_length(components), tokenizer(SUFFIX).input_ids
    texts = [f"{PREFIX}{caption.text}" for caption in captions]
    rows = tokenizer(texts, max_length=prefix + LONGEST - len(suffix), truncation=True).input_ids
    lengths = torch.tensor([len(row) + len(suffix) for row in rows])
    ids = torch.zeros(
        len(rows), prefix + padded_length(int(lengths.max()) - prefix, options.compiling), dtype=torch.int64
    )
    for number, row in enumerate(rows):
        ids[number, : lengths[number]] = torch.tensor([*row, *suffix])
    return {0: {"ids": ids, "mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}}


def padded_length(tokens: int, options: CompileOptions) -> int:
    step = STEP if options.compile else 1
    return -(-tokens // step) * step


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


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch with its number of tokens rounded up for compiled blocks. Without these a single
    caption needs no mask, for which attention is faster."""
    missing = padded_length(text[MASK].shape[1], options) - text[MASK].shape[1]
    if not missing and len(text[MASK]) == 1 and not options.compile:
        return {STATES: text[STATES]}
    return {STATES: F.pad(text[STATES], (0, 0, 0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin has the states that the transformer reads."""
    transformer: Any = components.denoiser
    states = (transformer.params.text_states, transformer.params.text_width)
    return OUTPUTS.cache_fits(components, tensors) and tuple(tensors[STATES].shape[-2:]) == states
