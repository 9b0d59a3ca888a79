"""The layers that LoRA adapts in SDXL, and their names in LoRA files."""

from functools import partial

from sd_scripts.families.sdxl.keys import lora_text_encoder_name, lora_unet_name, text_encoder1_key, unet_key
from sd_scripts.networks.targets import LoraBlocks, LoraTarget, block_label


def _comfyui_text_name(index: int, path: str) -> str:
    full = text_encoder1_key(path) if index == 0 else path
    return f"text_encoders.{('clip_l', 'clip_g')[index]}.transformer.{full}"


UNET = LoraTarget(
    classes=("Transformer2DModel",),
    attention_classes=("Attention",),
    conv_classes=("ResnetBlock2D", "Downsample2D", "Upsample2D"),
    name=lora_unet_name,
    alias=lambda path: "lora_unet_" + path.replace(".", "_"),
    comfyui=lambda path: f"diffusion_model.{unet_key(path)}",
    folds=("lora", "dora", "lokr"),
    together=(("attn1.to_q", "attn1.to_k", "attn1.to_v"), ("attn2.to_k", "attn2.to_v")),
    after_attention=("to_out.0",),
    class_aliases={"Attention": "CrossAttention", "TimestepEmbedding": "Sequential"},
)
TEXT_ENCODERS = tuple(
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=partial(lora_text_encoder_name, index),
        comfyui=partial(_comfyui_text_name, index),
        group=f"textencoder {index + 1}",
    )
    for index in (0, 1)
)


def _block(name: str) -> str:
    """`lora_unet_input_blocks_4_1_proj_in` -> `IN04`."""
    side, _, number = block_label(name).rpartition(" ")
    if side == "middle_block":
        return "MID"
    return f"{SIDES[side]}{int(number):02}" if side in SIDES else SINGLE.get(side, number)


SIDES = {"input_blocks": "IN", "output_blocks": "OUT"}
SINGLE = {"time_embed": "IN00", "label_emb": "IN00", "out": "OUT09"}
"""Layers outside of the numbered blocks."""


def _labels(inputs: range | tuple[int, ...], outputs: range) -> tuple[str, ...]:
    return ("BASE", *(f"IN{n:02}" for n in inputs), "MID", *(f"OUT{n:02}" for n in outputs))


BLOCKS = LoraBlocks(label=_block, lists={12: _labels((4, 5, 7, 8), range(6)), 20: _labels(range(9), range(9))})
"""Lists of 12 and of 20 block weights are sd-scripts'."""
