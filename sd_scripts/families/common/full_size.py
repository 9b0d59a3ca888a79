"""Sizes of full-size models that several families share."""

from typing import Any

AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}
CLIP_L: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "hidden_act": "quick_gelu",
}
QWEN3_4B = {"width": 2_560, "mlp_width": 9_728, "heads": 32, "key_heads": 8}
"""The text part of Qwen3-VL-4B, too."""
