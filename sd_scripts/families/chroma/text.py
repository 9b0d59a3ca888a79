"""Tokenize captions, and encode them to T5's hidden states, which Chroma reads up to the first token of padding."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.flux.text import t5_limit
from sd_scripts.formats.text_limit import TextLimit

STATES, MASK = "t5_out", "t5_attn_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)
VISIBLE_PADDING = 1
"""Tokens of padding after the caption that the transformer was trained to attend to."""


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64; T is the longest caption's length and one token of padding, at most
    components.extras["t5_length"]. Longer captions are truncated."""
    longest: int = components.extras["t5_length"]
    (t5,) = components.tokenizers
    tokens = t5(
        [caption.text for caption in captions],
        padding="longest",
        max_length=longest,
        truncation=True,
        return_tensors="pt",
    )
    more = min(VISIBLE_PADDING, longest - tokens.input_ids.shape[1])
    ids = F.pad(tokens.input_ids, (0, more), value=t5.pad_token_id)
    return {0: {"ids": ids, "mask": F.pad(tokens.attention_mask, (0, more))}}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that T5 reads, end token included."""
    return t5_limit(components, 0, components.extras["t5_length"])


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return t5_out (B, T, 4096) in the encoder's dtype, and t5_attn_mask (B, T) bool, True where the transformer
    attends: to the caption and the first token of padding. States are 0 elsewhere; differentiable."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.shared.weight.device
    ids, mask = (tokens[0][name].to(device) for name in ("ids", "mask"))
    hidden = encoder(ids, attention_mask=mask).last_hidden_state
    visible = mask.bool() | F.pad(mask, (VISIBLE_PADDING, 0))[:, : mask.shape[1]].bool()
    return {STATES: hidden * visible[..., None], MASK: visible}


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return the settings that change the outputs."""
    return (components.extras["t5_length"],)


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file of unknown origin is complete, as wide as the transformer's input, and not longer
    than captions are."""
    transformer: Any = components.denoiser
    if STATES not in tensors or MASK not in tensors:
        return False
    tokens, width = tensors[STATES].shape[-2:]
    return width == transformer.shape.text_width and tokens <= components.extras["t5_length"]
