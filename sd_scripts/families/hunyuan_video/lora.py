"""The layers that LoRA adapts in HunyuanVideo, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import clip_l_target, encoder_target
from sd_scripts.families.hunyuan_video.keys import KEYS
from sd_scripts.networks.targets import LoraTarget

TRANSFORMER = LoraTarget(
    classes=("MMDoubleStreamBlock", "MMSingleStreamBlock"),
    folds=("lora",),
    name=lora_name,
    diffusers_paths=KEYS.diffusers_modules,
    swaps_halves=KEYS.swaps_halves,
)
"""The card leaves out modulations, as musubi-tuner does."""
TEXT_ENCODERS = (
    encoder_target(1, "llama.transformer.model", "LlamaAttention", "LlamaMLP", attention=("LlamaAttention",)),
    clip_l_target(2),
)
