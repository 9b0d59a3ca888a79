"""The layers that LoRA adapts in Wan, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.families.wan.keys import KEYS
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("WanAttentionBlock",),
    attention_classes=("SelfAttention", "CrossAttention"),
    name=lora_name,
    diffusers_paths=KEYS.diffusers_modules,
    together=(
        ("self_attn.q", "self_attn.k", "self_attn.v"),
        ("cross_attn.k", "cross_attn.v"),
        ("cross_attn.k_img", "cross_attn.v_img"),
    ),
    after_attention=("self_attn.o", "cross_attn.o"),
)
"""All layers of the blocks, as in the files of musubi-tuner."""
TEXT_ENCODERS = (encoder_target(1, "umt5xxl.transformer", "UMT5Attention", "UMT5DenseGatedActDense"),)
