"""Qwen3 as a text encoder: its layers up to the last one whose output a transformer reads."""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from sd_scripts.library.files.state_dicts import Shapes, State, decoder_config
from sd_scripts.library.text.tokenizers import QWEN, TokenizerKind, shipped_qwen

ADDED = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of Qwen3 after Qwen2.5's."""


def with_qwen3_tokens(tokenizer: Any) -> Any:
    """Add the tokens that Qwen3 has and Qwen2.5 has not, and return the tokenizer."""
    from transformers import AddedToken

    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


LANGUAGE_LINEAR = re.compile(r"(model\.)?(language_model\.)?layers\..*_proj\.weight")
"""Names, and keys in files, of weights that can be quantized."""

QWEN3 = TokenizerKind(
    name=QWEN.name,
    shipped=lambda: with_qwen3_tokens(shipped_qwen()),
    size=QWEN.size + len(ADDED),
    cache_folder="Qwen_Qwen3-4B",
    spare=511,
)


def language_layers(file: State, last: int | None = None) -> State:
    """Return the embedding and the first `last` layers or, by default, all of them and the final norm, under
    Qwen3Model's names: without an output layer and, from a Qwen3-VL, without the vision tower."""
    file = {re.sub(r"^(model\.)?(language_model\.)?", "", key): tensor for key, tensor in file.items()}
    return {
        key: tensor
        for key, tensor in file.items()
        if key == "embed_tokens.weight"
        or (key.startswith("layers.") and (last is None or int(key.split(".")[1]) < last))
        or (key == "norm.weight" and last is None)
    }


def shapes_of_sizes(
    *, width: int, mlp_width: int, heads: int, key_heads: int, layers: int, head_width: int = 128, words: int = 151_936
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `config_of` reads, of a model of these sizes."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (words, width),
        "layers.0.self_attn.q_norm.weight": (head_width,),
        "layers.0.self_attn.q_proj.weight": (heads * head_width, width),
        "layers.0.self_attn.k_proj.weight": (key_heads * head_width, width),
    }
    return shapes | {f"layers.{number}.mlp.gate_proj.weight": (mlp_width, width) for number in range(layers)}


def config_of(shapes: Shapes, rope_theta: float = 1e6) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen3Config. Raises KeyError if a needed key is missing."""
    (head,) = shapes["layers.0.self_attn.q_norm.weight"]
    return {
        **decoder_config(shapes, head),
        "num_attention_heads": shapes["layers.0.self_attn.q_proj.weight"][0] // head,
        "head_dim": head,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "max_position_embeddings": 40_960,
    }


def qwen3(*, normed: bool = False, **config: Any) -> Qwen3Model:
    """Make layers of Qwen3, all of them and the final norm if `normed`."""
    model = Qwen3Model(Qwen3Config(**config))
    if not normed:
        model.norm = nn.Identity()
    return model


def states_of(model: Any, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Return the outputs (B, T, C) after these numbers of layers; the last layer's is normed if the model is.

    ids and mask (B, T) are on the model's device.
    """
    outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
    return [outputs.hidden_states[number] for number in layers]
