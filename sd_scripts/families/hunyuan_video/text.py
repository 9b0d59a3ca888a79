"""Tokenize captions, and encode them to LLaMA's hidden states and CLIP's pooled output, which HunyuanVideo reads."""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.hunyuan_video.card import LONGEST
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
"""95 tokens with LLaMA's vocabulary."""
TEMPLATE = CaptionTemplate(prefix=PREFIX, suffix="<|eot_id|>", longest=LONGEST, encoder=LLM)
"""CLIP, whose pooled output alone is used, reads the caption without it."""
STATES, MASK, POOLED = "llm", "llm_mask", "clipL"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK, whole=(POOLED,))


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return LLaMA's ids and mask (B, prefix + T), T being the longest caption's length, and CLIP's ids (B, 77), int64.

    Longer captions than LONGEST are truncated.
    """
    texts = [caption.text for caption in captions]
    clip_ids = components.tokenizers[CLIP](
        texts, max_length=CLIP_LENGTH, padding="max_length", truncation=True, return_tensors="pt"
    ).input_ids
    return {LLM: TEMPLATE.tokenize(components, texts), CLIP: {"ids": clip_ids}}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return the outputs of the encoders whose tokens are given, in their dtype; differentiable.

    LLaMA: llm (B, T, 4096), the third hidden states from the end, 0 after the caption, and llm_mask (B, T) bool, True
    where there is text. CLIP: clipL (B, 768).
    """
    outputs: dict[str, Tensor] = {}
    if LLM in tokens:
        outputs[STATES], outputs[MASK] = TEMPLATE.encode(components, tokens[LLM])
    if CLIP in tokens:
        end = components.tokenizers[CLIP].eos_token_id
        outputs[POOLED] = clip_pooled(components.text_encoders[CLIP], tokens[CLIP]["ids"], end)
    return outputs


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch, padded to LONGEST tokens for compiled blocks, so that captions share graphs.
    Without these a single caption needs no mask, for which attention is faster."""
    if options.compile:
        missing = LONGEST - text[MASK].shape[1]
        return {**text, STATES: F.pad(text[STATES], (0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}
    if len(text[MASK]) == 1:
        return {name: tensor for name, tensor in text.items() if name != MASK}
    return dict(text)
