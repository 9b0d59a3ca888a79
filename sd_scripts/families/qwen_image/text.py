"""Tokenize captions, and encode them to the last hidden states of Qwen2.5-VL, which Qwen-Image reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.qwen_image.card import LONGEST
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.compile import CompileOptions

PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
"""The text around a caption with which the model was trained. The states of the prefix are dropped, the suffix's are
kept."""
STEP = 128
"""In compiled runs the number of text tokens is rounded up to a multiple of it, so that captions share graphs."""
STATES, MASK = "vl_embed", "vl_mask"


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, prefix + T), int64; T is the longest caption's length, rounded up in compiled runs.

    Longer captions than LONGEST are truncated.
    """
    tokenizer = components.tokenizers[0]
    prefix = prefix_length(components)
    texts = [f"{PREFIX}{caption.text}{SUFFIX}" for caption in captions]
    rows = tokenizer(texts, max_length=prefix + LONGEST, truncation=True).input_ids
    length = prefix + padded_length(max(map(len, rows)) - prefix, options.compiling)
    ids = torch.zeros(len(rows), length, dtype=torch.int64)  # which token pads is the same: it comes after all others
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    return {0: {"ids": ids, "mask": mask}}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length of a caption with its suffix. Control images, which come first, do not count."""

    def count(captions: Sequence[str]) -> list[int]:
        texts = [f"{PREFIX}{caption}{SUFFIX}" for caption in captions]
        prefix = prefix_length(components)
        return [len(ids) - prefix for ids in components.tokenizers[0](texts, verbose=False).input_ids]

    return TextLimit(tokens=LONGEST, count=count, short=LONGEST - len(SUFFIX))


def prefix_length(components: Components) -> int:
    """Return the number of tokens before the caption: 34 with Qwen's vocabulary."""
    return len(components.tokenizers[0](PREFIX).input_ids)


def padded_length(tokens: int, options: CompileOptions) -> int:
    step = STEP if options.compile else 1
    return -(-tokens // step) * step


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return vl_embed (B, T, 3584), 0 after the caption, in the encoder's dtype, and vl_mask (B, T) bool, True where
    there is text; differentiable. Attention is causal, so padding, which follows, changes nothing before it."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.embed_tokens.weight.device
    prefix = prefix_length(components)
    hidden = encoder(tokens[0]["ids"].to(device), use_cache=False).last_hidden_state[:, prefix:]
    mask = tokens[0]["mask"][:, prefix:].to(device).bool()
    return {STATES: hidden * mask[..., None], MASK: mask}


def trim_text(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption, (T, ...), without padding, as caches keep them."""
    length = int(text[MASK].sum())
    return {name: tensor[:length] for name, tensor in text.items()}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch with its number of tokens rounded up for compiled blocks. Without these a single
    caption needs no mask, for which attention is faster."""
    missing = padded_length(text[MASK].shape[1], options) - text[MASK].shape[1]
    if not missing and len(text[MASK]) == 1 and not options.compile:
        return {STATES: text[STATES]}
    return {STATES: F.pad(text[STATES], (0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides the encoder that changes the outputs: the tokens around a caption."""
    tokenizer = components.tokenizers[0]
    return tuple(tokenizer(f"{PREFIX}a cat{SUFFIX}").input_ids)


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is complete and as wide as the transformer's input."""
    transformer: Any = components.denoiser
    fits = STATES in tensors and MASK in tensors
    return fits and tensors[STATES].shape[-1] == transformer.params.text_width
