"""Anima's transformer in diffusers, without weights and without the adapter of its text, which is small."""

from typing import Any

import torch
from diffusers import CosmosTransformer3DModel

from sd_scripts.families.anima.card.options import LONGEST
from sd_scripts.families.anima.model import AnimaParams


def make_transformer(params: AnimaParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    transformer = CosmosTransformer3DModel(
        in_channels=params.channels,
        out_channels=params.channels,
        num_attention_heads=params.heads,
        attention_head_dim=params.head_width,
        num_layers=params.blocks,
        mlp_ratio=params.mlp_width / params.width,
        text_embed_dim=params.text_width,
        adaln_lora_dim=params.modulation_width,
        rope_scale=(1.0, 4.0, 4.0),
        extra_pos_embed_type=None,
    )
    transformer._repeated_blocks = ["CosmosTransformerBlock"]  # what diffusers compiles, not named for this class
    return transformer


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one image of this size in pixels."""
    config = transformer.config
    return {
        "hidden_states": torch.randn(1, config.in_channels, 1, height // 8, width // 8),
        "timestep": torch.tensor([0.5]),
        "encoder_hidden_states": torch.randn(1, LONGEST, config.text_embed_dim),
        "padding_mask": torch.zeros(1, 1, height, width),
    }
