"""Tokenize captions, and encode them to the last hidden states of Qwen2.5-VL, which Qwen-Image reads."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import QWEN_VL_TEMPLATE, CaptionOutputs, padded_length
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.qwen_image.card import LONGEST

TEMPLATE = QWEN_VL_TEMPLATE(longest=LONGEST)
"""Control images, which come first, do not count to its length."""
STATES, MASK = "vl_embed", "vl_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, prefix + T), int64; T is the longest caption's length, rounded up in compiled runs.

    Longer captions than LONGEST are truncated.
    """
    padded = partial(padded_length, options=options.compiling)
    return {0: TEMPLATE.tokenize(components, [caption.text for caption in captions], padded)}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return vl_embed (B, T, 3584), 0 after the caption, in the encoder's dtype, and vl_mask (B, T) bool, True where
    there is text; differentiable."""
    if 0 not in tokens:
        return {}
    states, mask = TEMPLATE.encode(components, tokens[0])
    return {STATES: states, MASK: mask}
