"""The layers that LoRA adapts in FramePack, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import encoder_target
from sd_scripts.families.hunyuan_video.keys import KEYS
from sd_scripts.families.hunyuan_video.lora import TEXT_ENCODERS as OF_HUNYUAN_VIDEO
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("HunyuanVideoTransformerBlock", "HunyuanVideoSingleTransformerBlock"),
    name=lora_name,
    part_of=KEYS.part_of,
    together=(
        ("attn.to_q", "attn.to_k", "attn.to_v"),
        ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    ),
)
"""The card leaves out modulations, as musubi-tuner does."""
TEXT_ENCODERS = (
    *OF_HUNYUAN_VIDEO,
    encoder_target(3, "siglip"),
)
"""The image encoder is not adapted."""
