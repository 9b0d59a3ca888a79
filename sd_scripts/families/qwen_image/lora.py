"""The layers that LoRA adapts in Qwen-Image, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("QwenImageTransformerBlock",),
    name=lora_name,
    together=(
        ("attn.to_q", "attn.to_k", "attn.to_v"),
        ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    ),
)
"""Modulations included, as in the files of musubi-tuner."""
TEXT_ENCODERS = (encoder_target(1, "qwen25_7b.transformer.model", "Qwen2_5_VLAttention", "Qwen2MLP"),)
