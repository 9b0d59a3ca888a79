"""Layouts of Qwen-Image's text encoder: its language model, and sizes from tensor shapes."""

from typing import Any

from sd_scripts.library.files.state_dicts import Shapes, State, decoder_config

HEAD_WIDTH = 128
"""The same for every Qwen2.5 model; shapes do not determine it."""
MROPE_SECTIONS = [16, 24, 24]
"""Rotary pairs of a head for time, row and column."""


def language_model(file: State) -> State:
    """Return the language model of Qwen2.5-VL, without vision tower and output layer, under its own names.

    transformers 5 writes it as `model.language_model.`, and `model.visual.` next to it; earlier versions wrote
    `model.`, and `visual.`, as in the official files.
    """
    inside = "model.language_model." if any(key.startswith("model.language_model.") for key in file) else "model."
    return {key.removeprefix(inside): tensor for key, tensor in file.items() if key.startswith(inside)}


def language_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen2_5_VLTextConfig. Raises KeyError if a needed key is missing."""
    sizes = decoder_config(shapes, HEAD_WIDTH)
    return {
        **sizes,
        "num_attention_heads": sizes["hidden_size"] // HEAD_WIDTH,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": MROPE_SECTIONS},
        "max_position_embeddings": 128_000,
    }
