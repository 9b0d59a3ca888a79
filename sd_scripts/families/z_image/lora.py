"""The layers that LoRA adapts in Z-Image, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.z_image.keys import part_of
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("ZImageTransformerBlock",),
    attention_classes=("Attention",),
    name=lora_name,
    part_of=part_of,
    together=(("attention.to_q", "attention.to_k", "attention.to_v"), ("feed_forward.w1", "feed_forward.w3")),
)
"""The card leaves out modulations and refiners, as musubi-tuner does."""
TEXT_ENCODERS = (
    LoraTarget(
        classes=("Qwen3Attention", "Qwen3MLP"),
        name=lambda path: f"lora_te1_{path.replace('.', '_')}",
        comfyui=lambda path: f"text_encoders.qwen3_4b.transformer.model.{path}",
        group="textencoder 1",
    ),
)
