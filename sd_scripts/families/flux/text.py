"""Tokenize captions, and encode them to CLIP's pooled output and T5's hidden states, which FLUX.1 reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.flux import card
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.clip_pooled import clip_pooled
from sd_scripts.library.text.tokenizers import CLIP_LENGTH

CLIP, T5 = 0, 1
"""Indices of the encoders."""
OUTPUTS = ("l_pooled", "t5_out", "txt_ids", "t5_attn_mask", "apply_t5_attn_mask")
"""Contents of a cache file."""


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return CLIP's ids (B, 77), and T5's ids and mask (B, T), int64; T is components.extras["t5_length"].

    Longer captions are truncated.
    """
    clip, t5 = components.tokenizers
    padded = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    texts = [caption.text for caption in captions]
    clip_tokens = clip(texts, max_length=CLIP_LENGTH, **padded)
    t5_tokens = t5(texts, max_length=components.extras["t5_length"], **padded)
    return {
        CLIP: {"ids": clip_tokens.input_ids},
        T5: {"ids": t5_tokens.input_ids, "mask": t5_tokens.attention_mask},
    }


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that T5 reads, end token included. CLIP's is shorter, but of CLIP only the pooled output is
    used, which sums up a caption. Of components without a model it is the length of dev."""
    return t5_limit(components, T5, components.extras.get("t5_length", card.T5_LENGTHS["dev"]))


def t5_limit(components: Components, t5: int, length: int) -> TextLimit:
    """Return the length that T5 reads, end token included; `t5`: its index among the encoders."""
    return replace(
        card.limit_of(length),
        count=lambda captions: list(map(len, components.tokenizers[t5](list(captions), verbose=False).input_ids)),
        short=length - 2,  # a blank before the first word, and the end token
    )


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return the outputs of the encoders whose tokens are given, in their dtype; differentiable.

    CLIP: l_pooled (B, 768). T5: t5_out (B, T, 4096), txt_ids (B, T, 3) zeros, t5_attn_mask (B, T) int64 and
    apply_t5_attn_mask (B,) bool, components.extras["apply_t5_attn_mask"]: whether T5 and the transformer ignore the
    padding.
    """
    outputs: dict[str, Tensor] = {}
    if CLIP in tokens:
        outputs["l_pooled"] = clip_pooled(
            components.text_encoders[CLIP], tokens[CLIP]["ids"], components.tokenizers[CLIP].eos_token_id
        )
    if T5 in tokens:
        outputs |= _states(components, tokens[T5]["ids"], tokens[T5]["mask"])
    return outputs


def _states(components: Components, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    encoder = components.text_encoders[T5]
    masked = bool(components.extras["apply_t5_attn_mask"])
    device = next(encoder.parameters()).device
    ids, mask = ids.to(device), mask.to(device)
    hidden = encoder(ids, attention_mask=mask if masked else None).last_hidden_state
    return {
        "t5_out": hidden,
        "txt_ids": hidden.new_zeros((*ids.shape, 3)),
        "t5_attn_mask": mask,
        "apply_t5_attn_mask": torch.full((len(ids),), masked, device=device),
    }


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return the settings that change the outputs."""
    return components.extras["t5_length"], components.extras["apply_t5_attn_mask"]


def text_cache_fits(components: Components, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a cache file is complete and was made with T5's current length and mask, without
    reading the hidden states."""
    if any(name not in tensors for name in OUTPUTS):
        return False
    masked = bool(tensors["apply_t5_attn_mask"]) == components.extras["apply_t5_attn_mask"]
    return masked and len(tensors["t5_attn_mask"]) == components.extras["t5_length"]
