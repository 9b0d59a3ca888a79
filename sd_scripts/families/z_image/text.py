"""Tokenize captions, and encode them to the states of Qwen3 before its last layer, which Z-Image reads."""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.z_image.card import LONGEST
from sd_scripts.options.compile import CompileOptions

LAYERS = 35
"""How many of Qwen3-4B's 36 layers are read."""
TEMPLATE = CaptionTemplate(
    prefix="<|im_start|>user\n", suffix="<|im_end|>\n<|im_start|>assistant\n", longest=LONGEST, keeps_prefix=True
)
"""Qwen3's chat template with thinking."""
STEP = 128
"""In compiled runs the number of text tokens is rounded up to a multiple of it, so that captions share graphs."""
STATES, MASK = "qwen3_embed", "qwen3_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64; T is the longest caption's length, rounded up in compiled runs.

    Longer captions than LONGEST are truncated.
    """
    texts = [caption.text for caption in captions]
    return {0: TEMPLATE.tokenize(components, texts, lambda tokens: padded_length(tokens, options.compiling))}


def padded_length(tokens: int, options: CompileOptions) -> int:
    step = STEP if options.compile else 1
    return -(-tokens // step) * step


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return qwen3_embed (B, T, 2560), 0 after the caption, in the encoder's dtype, and qwen3_mask (B, T) bool, True
    where there is text; differentiable."""
    if 0 not in tokens:
        return {}
    states, mask = TEMPLATE.encode(components, tokens[0])
    return {STATES: states, MASK: mask}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch with its number of tokens rounded up for compiled blocks. Without these a single
    caption needs no mask, for which attention is faster."""
    states, mask = text[STATES], text[MASK]
    if len(mask) == 1 and not options.compile:
        return {STATES: states}
    missing = padded_length(mask.shape[1], options) - mask.shape[1]
    return {STATES: F.pad(states, (0, 0, 0, missing)), MASK: F.pad(mask, (0, missing))}
