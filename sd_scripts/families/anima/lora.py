"""The layers that LoRA adapts in Anima, and their names in LoRA files."""

from sd_scripts.families.anima.keys import CONDITIONER, diffusers_modules
from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("AnimaBlock", "AdapterBlock"),
    attention_classes=("Attention",),
    name=lora_name,
    diffusers_paths=diffusers_modules,
    diffusers_components=(CONDITIONER,),
    together=(
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("cross_attn.k_proj", "cross_attn.v_proj"),
    ),
    after_attention=("self_attn.output_proj", "cross_attn.output_proj"),
)
"""The family's rules leave out modulations and the adapter by default, as in sd-scripts."""
TEXT_ENCODERS = (encoder_target(1, "qwen3_06b.transformer.model", "Qwen3Attention", "Qwen3MLP", prefix="lora_te"),)
