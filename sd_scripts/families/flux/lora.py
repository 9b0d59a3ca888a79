"""The layers that LoRA adapts in FLUX.1, and their names in LoRA files."""

from collections.abc import Callable

from sd_scripts.families.flux.card.layer_rules import IN_LAYERS
from sd_scripts.families.flux.keys import diffusers_modules, swaps_halves
from sd_scripts.networks.targets import LoraBlocks, LoraTarget, block_label


def _clip_name(path: str) -> str:
    """LoRA files have the prefix `text_model`, which module paths in transformers 5 lack."""
    return _name("lora_te1")("text_model." + path.removeprefix("text_model."))


def _comfyui_name(encoder: str, start: str = "") -> Callable[[str], str]:
    return lambda path: f"text_encoders.{encoder}.transformer.{start}{path.removeprefix(start)}"


def _name(prefix: str) -> Callable[[str], str]:
    return lambda path: f"{prefix}_{path.replace('.', '_')}"


TRANSFORMER = LoraTarget(
    classes=("DoubleBlock", "SingleBlock"),
    attention_classes=("SelfAttention",),
    extra_modules=IN_LAYERS,
    folds=("lora",),
    name=_name("lora_unet"),
    diffusers_paths=diffusers_modules,
    swaps_halves=swaps_halves,
    class_aliases={"DoubleBlock": "DoubleStreamBlock", "SingleBlock": "SingleStreamBlock"},
)
TEXT_ENCODERS = (
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=_clip_name,
        comfyui=_comfyui_name("clip_l", "text_model."),
        group="textencoder 1",
    ),
    LoraTarget(
        classes=("T5Attention", "T5DenseGatedActDense"),
        attention_classes=("T5Attention",),
        name=_name("lora_te3"),
        comfyui=_comfyui_name("t5xxl"),
        group="textencoder 3",
    ),
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
