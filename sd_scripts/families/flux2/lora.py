"""The layers that LoRA adapts in FLUX.2, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.families.flux2.keys import KEYS
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("DoubleBlock", "SingleBlock"),
    attention_classes=("SelfAttention",),
    name=lora_name,
    diffusers_paths=KEYS.diffusers_modules,
    swaps_halves=KEYS.swaps_halves,
)
TEXT_ENCODERS = (encoder_target(1, "qwen3_4b.transformer.model", "Qwen3Attention", "Qwen3MLP"),)
