"""Tokenize captions, and encode them to the last hidden states of Qwen2.5-VL, which Qwen-Image reads."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.qwen_image.card import LONGEST
from sd_scripts.options.compile import CompileOptions

PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)
"""34 tokens with Qwen's vocabulary."""
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n"
TEMPLATE = CaptionTemplate(prefix=PREFIX, suffix=SUFFIX, longest=LONGEST)
"""Control images, which come first, do not count to its length."""
STEP = 128
"""In compiled runs the number of text tokens is rounded up to a multiple of it, so that captions share graphs."""
STATES, MASK = "vl_embed", "vl_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, prefix + T), int64; T is the longest caption's length, rounded up in compiled runs.

    Longer captions than LONGEST are truncated.
    """
    padded = partial(padded_length, options=options.compiling)
    return {0: TEMPLATE.tokenize(components, [caption.text for caption in captions], padded)}


def padded_length(tokens: int, options: CompileOptions) -> int:
    step = STEP if options.compile else 1
    return -(-tokens // step) * step


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return vl_embed (B, T, 3584), 0 after the caption, in the encoder's dtype, and vl_mask (B, T) bool, True where
    there is text; differentiable."""
    if 0 not in tokens:
        return {}
    states, mask = TEMPLATE.encode(components, tokens[0])
    return {STATES: states, MASK: mask}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the outputs of a batch with its number of tokens rounded up for compiled blocks. Without these a single
    caption needs no mask, for which attention is faster."""
    missing = padded_length(text[MASK].shape[1], options) - text[MASK].shape[1]
    if not missing and len(text[MASK]) == 1 and not options.compile:
        return {STATES: text[STATES]}
    return {STATES: F.pad(text[STATES], (0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}
