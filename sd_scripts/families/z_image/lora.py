"""The layers that LoRA adapts in Z-Image, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
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
TEXT_ENCODERS = (encoder_target(1, "qwen3_4b.transformer.model", "Qwen3Attention", "Qwen3MLP"),)
