"""Qwen3 as a text encoder: its layers up to the last one whose output a transformer reads."""

from typing import Any

from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from sd_scripts.library.files.state_dicts import Shapes, State, count
from sd_scripts.library.text.tokenizers import QWEN, TokenizerKind, shipped_qwen

ADDED = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of Qwen3 after Qwen2.5's."""


def with_qwen3_tokens(tokenizer: Any) -> Any:
    """Add the tokens that Qwen3 has and Qwen2.5 has not, and return the tokenizer."""
    from transformers import AddedToken

    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


QWEN3 = TokenizerKind(
    name=QWEN.name,
    shipped=lambda: with_qwen3_tokens(shipped_qwen()),
    size=QWEN.size + len(ADDED),
    cache_folder="Qwen_Qwen3-4B",
    spare=511,
)


def language_layers(file: State, last: int) -> State:
    """Return the embedding and the first `last` layers, without the final norm and the output layer."""
    file = {key.removeprefix("model."): tensor for key, tensor in file.items()}
    return {
        key: tensor
        for key, tensor in file.items()
        if key == "embed_tokens.weight" or (key.startswith("layers.") and int(key.split(".")[1]) < last)
    }


def config_of(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen3Config. Raises KeyError if a needed key is missing."""
    vocabulary, width = shapes["embed_tokens.weight"]
    (head,) = shapes["layers.0.self_attn.q_norm.weight"]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count(shapes, r"layers\.\d+\.mlp\.gate_proj\.weight"),
        "num_attention_heads": shapes["layers.0.self_attn.q_proj.weight"][0] // head,
        "num_key_value_heads": shapes["layers.0.self_attn.k_proj.weight"][0] // head,
        "head_dim": head,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "max_position_embeddings": 40_960,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def qwen3(**config: Any) -> Qwen3Model:
    """Make the layers of Qwen3. The final norm follows only the last layer of the whole model."""
    model = Qwen3Model(Qwen3Config(**config))
    model.norm = nn.Identity()
    return model


def states_of(model: Any, ids: Tensor, mask: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """Return the outputs (B, T, C) after these numbers of layers. ids and mask (B, T) on the model's device."""
    outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
    return [outputs.hidden_states[number] for number in layers]
