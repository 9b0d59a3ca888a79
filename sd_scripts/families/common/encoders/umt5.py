"""UMT5 as Wan's text encoder, whose hidden states are read at a length of 512 tokens."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.shared_components import UMT5_TOKENS
from sd_scripts.families.common.encoders.captions import CaptionOutputs
from sd_scripts.families.common.encoders.outlines import UMT5EncoderOutline
from sd_scripts.families.common.encoders.t5 import finish_t5, t5_config, t5_encoder
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.common.layouts import Layout, make_text_encoder
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.files.state_dicts import State, renamed
from sd_scripts.library.text.tokenizers import TokenizerKind
from sd_scripts.options.compile import CompileOptions

STATES, MASK = "t5", "t5_mask"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK)
TOKENS, ROWS = 256_300, 256_384
"""Tokens of UMT5's vocabulary, and rows of its embedding."""

TOKENIZER = TokenizerKind(
    name="T5Tokenizer",
    size=TOKENS,
    spare=ROWS - TOKENS,
    cache_folder="google_umt5-xxl",
    folders=("google/umt5-xxl",),
    hub="google/umt5-xxl",
)
"""Its vocabulary, 4.5 MB, is not in this package."""


def cleaned(text: str) -> str:
    """Return a caption as the model saw captions: without HTML entities and repeated white space."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids and mask (B, T), int64; T is the longest caption's length. Longer captions than UMT5_TOKENS are
    truncated."""
    texts = [cleaned(caption.text) for caption in captions]
    tokens = components.tokenizers[0](
        texts, padding="longest", max_length=UMT5_TOKENS, truncation=True, return_tensors="pt"
    )
    return {0: {"ids": tokens.input_ids, "mask": tokens.attention_mask}}


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that UMT5 reads, end token included."""

    def count(captions: Sequence[str]) -> list[int]:
        return list(map(len, components.tokenizers[0]([cleaned(each) for each in captions], verbose=False).input_ids))

    short = UMT5_TOKENS - 2  # a blank before the first word, and the end token
    return TextLimit(tokens=UMT5_TOKENS, count=count, short=short)


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return t5 (B, T, 4096), 0 after the caption, in the encoder's dtype, and t5_mask (B, T) bool, True where there is
    text."""
    if 0 not in tokens:
        return {}
    encoder: Any = components.text_encoders[0]
    device = encoder.shared.weight.device
    ids, mask = (tokens[0][name].to(device) for name in ("ids", "mask"))
    hidden = encoder(ids, attention_mask=mask).last_hidden_state
    return {STATES: hidden * mask[..., None], MASK: mask.bool()}


def pad_text(text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
    """Return the states of a batch padded to the length that the transformer always reads: it attends to the padding,
    without a mask."""
    return {STATES: F.pad(text[STATES], (0, 0, 0, UMT5_TOKENS - text[STATES].shape[1]))}


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return everything besides the encoder that changes the outputs."""
    return (UMT5_TOKENS,)


IN_BLOCK = {
    "norm1": "layer.0.layer_norm",
    "norm2": "layer.1.layer_norm",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
    **{f"attn.{name}": f"layer.0.SelfAttention.{name}" for name in "qkvo"},
}
"""Official module of a block -> transformers'."""
OUTSIDE = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
OFFICIAL = "blocks.0.pos_embedding.embedding.weight"
VOCABULARY = "spiece_model"
"""ComfyUI's files of UMT5 contain the tokenizer's vocabulary as bytes."""
_BLOCK = re.compile(r"(blocks\.\d+\.)(.+)")


def umt5_encoder(file: State) -> State:
    """Return UMT5's encoder under transformers' keys, from these or from the official ones."""
    file = {key: tensor for key, tensor in file.items() if key != VOCABULARY}
    if OFFICIAL in file:
        file = {_of_transformers(key): tensor for key, tensor in file.items()}
    return t5_encoder(file)


def _of_transformers(key: str) -> str:
    if block := _BLOCK.fullmatch(key):
        return f"encoder.{block[1].replace('blocks', 'block')}{renamed(block[2], IN_BLOCK)}"
    return renamed(key, OUTSIDE)


LAYOUT = Layout(
    make=lambda shapes: make_text_encoder("UMT5EncoderModel", "UMT5Config", t5_config(shapes)),
    outline=lambda shapes: UMT5EncoderOutline(**t5_config(shapes)),
    unify=umt5_encoder,
    finish=finish_t5,
    tokenizer=TOKENIZER,
    quantizable=re.compile(r"encoder\.block\.(?!.*relative_attention_bias).*\.weight"),  # which is a lookup table
)
