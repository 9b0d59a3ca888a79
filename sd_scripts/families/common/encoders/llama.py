"""LLaMA-3 and CLIP-L as HunyuanVideo's text encoders, which FramePack has, too.

The transformers read LLaMA's third hidden states from the end, for the caption without the text around it, and CLIP's
pooled output.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.common.encoders.captions import CaptionOutputs, CaptionTemplate
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.common.layouts import Layout, clip_l, make_text_encoder
from sd_scripts.library.files.state_dicts import GATES, Shapes, State, count, decoder_config
from sd_scripts.library.text import tokenizers
from sd_scripts.library.text.clip_pooled import clip_pooled
from sd_scripts.library.text.tokenizers import CLIP_LENGTH
from sd_scripts.options.compile import CompileOptions

SKIPPED_LAYERS = 2
"""Layers at the end of the language model whose output is not read."""
ROPE_BASE, RMS_EPS, HEAD_WIDTH = 500_000.0, 1e-5, 128
"""Of every LLaMA-3; shapes do not determine them."""

LLM, CLIP = 0, 1
"""Indices of the encoders."""
LLM_NAME, CLIP_NAME = "text_encoder1", "text_encoder2"
"""Components."""
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
TEMPLATE = CaptionTemplate(prefix=PREFIX, suffix="<|eot_id|>", longest=LLAMA_TOKENS, encoder=LLM)
"""CLIP, whose pooled output alone is used, reads the caption without it."""
STATES, MASK, POOLED = "llm", "llm_mask", "clipL"
OUTPUTS = CaptionOutputs(states=STATES, mask=MASK, whole=(POOLED,))


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return LLaMA's ids and mask (B, prefix + T), T being the longest caption's length, and CLIP's ids (B, 77), int64.

    Longer captions than LLAMA_TOKENS are truncated.
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
    """Return the outputs of a batch, padded to LLAMA_TOKENS for compiled blocks, so that captions share graphs.
    Without these a single caption needs no mask, for which attention is faster."""
    if options.compile:
        missing = LLAMA_TOKENS - text[MASK].shape[1]
        return {**text, STATES: F.pad(text[STATES], (0, 0, 0, missing)), MASK: F.pad(text[MASK], (0, missing))}
    if len(text[MASK]) == 1:
        return {name: tensor for name, tensor in text.items() if name != MASK}
    return dict(text)


def language_model(file: State) -> State:
    """Return the layers of LLaMA that are read: without the last two, the final norm, the output layer, and
    the tokenizer that ComfyUI's file contains."""
    layers = count({key: tuple(tensor.shape) for key, tensor in file.items()}, GATES)
    read = [f"layers.{number}." for number in range(layers - SKIPPED_LAYERS)]
    return {key: tensor for key, tensor in file.items() if key.startswith(("embed_tokens.", *read))}


def language_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' LlamaConfig, from the shapes of the layers that are read. Raises KeyError
    if a needed key is missing."""
    width = shapes["embed_tokens.weight"][1]
    head = min(HEAD_WIDTH, width)
    return {
        **decoder_config(shapes, head),
        "num_attention_heads": width // head,
        "head_dim": head,
        "rms_norm_eps": RMS_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "max_position_embeddings": 8192,
        "pad_token_id": None,
    }


def make_language_model(shapes: Shapes) -> nn.Module:
    """Return the layers of LLaMA whose output is read, without the final norm."""
    model: Any = make_text_encoder("LlamaModel", "LlamaConfig", language_config(shapes))
    model.norm = nn.Identity()
    return cast(nn.Module, model)


LAYOUTS = {
    LLM_NAME: Layout(
        make=make_language_model,
        unify=language_model,
        tokenizer=tokenizers.LLAMA,
        quantizable=re.compile(r"layers\..*\.weight"),
    ),
    CLIP_NAME: clip_l(tokenizer=tokenizers.CLIP),
}
