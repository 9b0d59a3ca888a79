"""State dicts: types, and reading sizes from the shapes of a file."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

State = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
GATES = r"layers\.\d+\.mlp\.gate_proj\.weight"
"""A key of each layer of a language model."""


def count(shapes: Shapes, numbered: str) -> int:
    """Return how many keys match the regular expression `numbered` in full."""
    return sum(bool(re.fullmatch(numbered, key)) for key in shapes)


def decoder_config(shapes: Shapes, head_width: int) -> dict[str, Any]:
    """Return arguments of transformers' configurations for the language models of LLaMA's layout, with heads of this
    width; rotary table and norms have others. Raises KeyError if a needed key is missing."""
    vocabulary, width = shapes["embed_tokens.weight"]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.gate_proj.weight"][0],
        "num_hidden_layers": count(shapes, GATES),
        "num_key_value_heads": shapes["layers.0.self_attn.k_proj.weight"][0] // head_width,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def take(file: State, keys: dict[str, str]) -> State:
    """Return the tensors that the file has, by new name; `keys`: new name -> key in the file."""
    return {name: file[key] for name, key in keys.items() if key in file}


def renamed(key: str, names: Mapping[str, str]) -> str:
    """Rename the module of a key, or the whole key of a parameter of its own."""
    if key in names:
        return names[key]
    module, _, kind = key.rpartition(".")
    return f"{names[module]}.{kind}" if module in names else key
