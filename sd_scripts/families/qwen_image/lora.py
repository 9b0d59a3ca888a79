"""The layers that LoRA adapts in Qwen-Image, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
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
TEXT_ENCODERS = (
    LoraTarget(
        classes=("Qwen2_5_VLAttention", "Qwen2MLP"),
        name=lambda path: f"lora_te1_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.qwen25_7b.transformer.model.{path}",
        group="textencoder 1",
    ),
)
