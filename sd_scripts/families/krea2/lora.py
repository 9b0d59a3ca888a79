"""The layers that LoRA adapts in Krea 2, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.families.krea2.keys import KEYS
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("Krea2Transformer",),
    attention_classes=("Attention",),
    name=lora_name,
    diffusers_paths=KEYS.diffusers_modules,
    together=(("attn.wq", "attn.wk", "attn.wv", "attn.gate"), ("mlp.gate", "mlp.up")),
)
"""All layers, as in the files of musubi-tuner; modulation has none but the one that blocks share."""
TEXT_ENCODERS = (encoder_target(1, "qwen3vl_4b.transformer.model", "Qwen3Attention", "Qwen3MLP"),)
