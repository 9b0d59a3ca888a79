"""Sizes of full-size models that several families share."""

from typing import Any

from torch import nn

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
T5_XXL: dict[str, Any] = {
    "vocab_size": 32_128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10_240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": False,
}
LLAMA_LAYERS = 32
"""Of LLaVA-LLaMA-3-8B's language model."""
QWEN3_4B = {"width": 2_560, "mlp_width": 9_728, "heads": 32, "key_heads": 8}
"""The text part of Qwen3-VL-4B, too."""


def llama_and_clip() -> dict[str, nn.Module]:
    """Return LLaVA-LLaMA-3-8B's language model, without the layers that are not read, and CLIP-L, to be called with the
    meta device."""
    from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel  # which other families do not need

    from sd_scripts.families.common.encoders.llama import CLIP_NAME, LLM_NAME, SKIPPED_LAYERS, language_config

    shapes = {"embed_tokens.weight": (128_320, 4_096), "layers.0.self_attn.k_proj.weight": (1_024, 4_096)}
    read = range(LLAMA_LAYERS - SKIPPED_LAYERS)
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (14_336, 4_096) for number in read}
    llama = LlamaModel(LlamaConfig(**language_config(shapes)))
    llama.norm = nn.Identity()  # type: ignore[assignment]
    return {LLM_NAME: llama, CLIP_NAME: CLIPTextModel(CLIPTextConfig(**CLIP_L))}
