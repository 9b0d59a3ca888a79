"""Tokenize captions, and encode them to LLaMA's hidden states and CLIP's pooled output, which HunyuanVideo reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.hunyuan_video.card import LONGEST
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.clip_pooled import clip_pooled
from sd_scripts.library.text.tokenizers import CLIP_LENGTH
from sd_scripts.options.compile import CompileOptions

LLM, CLIP = 0, 1
"""Indices of the encoders."""
PREFIX = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n"
)
SUFFIX = "<|eot_id|>"
"""The text around a caption with which the model was trained. The states of the prefix, 95 tokens with LLaMA's
vocabulary, are dropped, the suffix's are kept."""
STATES, MASK, POOLED = "llm", "llm_mask", "clipL"


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return LLaMA's ids and mask (B, prefix + T), T being the longest caption's length, and CLIP's ids (B, 77), int64.

    Longer captions than LONGEST are truncated.
    """
    llama, clip = components.tokenizers
    texts = [caption.text for caption in captions]
    prefix = prefix_length(components)
    rows = llama([f"{PREFIX}{text}{SUFFIX}" for text in texts], max_length=prefix + LONGEST, truncation=True).input_ids
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.int64)  # which token pads is the same: it comes after all others
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    clip_ids = clip(texts, max_length=CLIP_LENGTH, padding="max_length", truncation=True, return_tensors="pt").input_ids
    return {LLM: {"ids": ids, "mask": mask}, CLIP: {"ids": clip_ids}}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that LLaMA reads, with the suffix. CLIP's is shorter, but of CLIP only the pooled output is
    used, which sums up a caption."""

    def count(captions: Sequence[str]) -> list[int]:
        texts = [f"{PREFIX}{caption}{SUFFIX}" for caption in captions]
        prefix = prefix_length(components)
        return [len(ids) - prefix for ids in components.tokenizers[LLM](texts, verbose=False).input_ids]

    return TextLimit(tokens=LONGEST, count=count, short=LONGEST - len(SUFFIX))


def prefix_length(components: Components) -> int:
    """Return the number of tokens before the caption, the tokenizer's own begin token included."""
    return len(components.tokenizers[LLM](PREFIX).input_ids)


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return the outputs of the encoders whose tokens are given, in their dtype; differentiable.

    LLaMA: llm (B, T, 4096), the third hidden states from the end, 0 after the caption, and llm_mask (B, T) bool, True
    where there is text. Attention is causal, so padding, which follows, changes nothing before it. CLIP: clipL (B,
    768).
    """
    outputs: dict[str, Tensor] = {}
    if LLM in tokens:
        encoder: Any = components.text_encoders[LLM]
        device = encoder.embed_tokens.weight.device
        prefix = prefix_length(components)
        hidden = encoder(tokens[LLM]["ids"].to(device), use_cache=False).last_hidden_state[:, prefix:]
        mask = tokens[LLM]["mask"][:, prefix:].to(device).bool()
        outputs |= {STATES: hidden * mask[..., None], MASK: mask}
    if CLIP in tokens:
        end = components.tokenizers[CLIP].eos_token_id
        outputs[POOLED] = clip_pooled(components.text_encoders[CLIP], tokens[CLIP]["ids"], end)
    return outputs


def trim_text(text: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs of one caption without padding, as caches keep them."""
    if MASK not in text:
        return dict(text)
    length = int(text[MASK].sum())
    return {name: tensor if name == POOLED else tensor[:length] for name, tensor in text.items()}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch, padded to LONGEST tokens for compiled blocks, so that captions share graphs.
    Without these a single caption needs no mask, for which attention is faster."""
    if options.compile:
        missing = LONGEST - text[MASK].shape[1]
        return {**text, STATES: F.pad(text[STATES], (0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}
    if len(text[MASK]) == 1:
        return {name: tensor for name, tensor in text.items() if name != MASK}
    return dict(text)


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides the encoders that changes the outputs: the tokens around a caption."""
    return tuple(components.tokenizers[LLM](f"{PREFIX}a cat{SUFFIX}").input_ids)


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is complete and as wide as the transformer's input."""
    transformer: Any = components.denoiser
    fits = all(name in tensors for name in (STATES, MASK, POOLED))
    return fits and tensors[STATES].shape[-1] == transformer.params.text_width
