"""Tokenize captions, and encode them to the states of Qwen3 before its last layer, which Z-Image reads."""

from collections.abc import Sequence

from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate, padded_length
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.z_image.card import LONGEST

LAYERS = 35
"""How many of Qwen3-4B's 36 layers are read."""
TEMPLATE = CaptionTemplate(
    prefix="<|im_start|>user\n",
    suffix="<|im_end|>\n<|im_start|>assistant\n",
    longest=LONGEST,
    keeps_prefix=True,
    example_ids=(151644, 872, 198, 64, 8251, 151645, 198, 151644, 77091, 198),
)
"""Qwen3's chat template with thinking."""
STATES, MASK = "qwen3_embed", "qwen3_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64; T is the longest caption's length, rounded up in compiled runs.

    Longer captions than LONGEST are truncated.
    """
    texts = [caption.text for caption in captions]
    return {0: TEMPLATE.tokenize(components, texts, lambda tokens: padded_length(tokens, options.compiling))}


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return qwen3_embed (B, T, 2560), 0 after the caption, in the encoder's dtype, and qwen3_mask (B, T) bool, True
    where there is text; differentiable."""
    if 0 not in tokens:
        return {}
    states, mask = TEMPLATE.encode(components, tokens[0])
    return {STATES: states, MASK: mask}
