"""The layers that LoRA adapts in FLUX.1, and their names in LoRA files."""

from sd_scripts.families.cards.layer_patterns import lora_name
from sd_scripts.families.common.encoders.lora_targets import clip_l_target, encoder_target
from sd_scripts.families.flux.card.layer_rules import IN_LAYERS
from sd_scripts.families.flux.keys import KEYS
from sd_scripts.networks.targets import LoraBlocks, LoraTarget, block_label

TRANSFORMER = LoraTarget(
    classes=("DoubleBlock", "SingleBlock"),
    attention_classes=("SelfAttention",),
    extra_modules=IN_LAYERS,
    folds=("lora",),
    name=lora_name,
    diffusers_paths=KEYS.diffusers_modules,
    swaps_halves=KEYS.swaps_halves,
    class_aliases={"DoubleBlock": "DoubleStreamBlock", "SingleBlock": "SingleStreamBlock"},
)
TEXT_ENCODERS = (
    clip_l_target(1),
    encoder_target(3, "t5xxl.transformer", "T5Attention", "T5DenseGatedActDense", attention=("T5Attention",)),
)
"""CLIP-L and T5-XXL; the files' te2 is the second encoder of SDXL."""


def _block(name: str) -> str:
    """`lora_unet_double_blocks_3_img_attn_qkv` -> `D03`; the layers before the blocks are `IN`, those behind `OUT`."""
    kind, _, number = block_label(name).rpartition(" ")
    if kind in KINDS:
        return f"{KINDS[kind]}{int(number):02}"
    if LoraBlocks.is_text(name):
        return number
    return "OUT" if name.startswith("lora_unet_final_layer") else "IN"


KINDS = {"double_blocks": "D", "single_blocks": "S"}
NUMBERED = (*(f"D{n:02}" for n in range(19)), *(f"S{n:02}" for n in range(38)))
BLOCKS = LoraBlocks(label=_block, lists={57: NUMBERED, 58: ("BASE", *NUMBERED)})
