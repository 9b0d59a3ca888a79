"""The layers that LoRA adapts in SDXL, and their names in LoRA files."""

from functools import partial

from sd_scripts.families.sdxl.by_block import read_block_rules
from sd_scripts.families.sdxl.keys import lora_text_encoder_name, lora_unet_name
from sd_scripts.networks.targets import LoraTarget

UNET = LoraTarget(
    classes=("Transformer2DModel",),
    attention_classes=("Attention",),
    conv_classes=("ResnetBlock2D", "Downsample2D", "Upsample2D"),
    name=lora_unet_name,
    alias=lambda path: "lora_unet_" + path.replace(".", "_"),
    folds=True,
    together=(("attn1.to_q", "attn1.to_k", "attn1.to_v"), ("attn2.to_k", "attn2.to_v")),
    after_attention=("to_out.0",),
    class_aliases={"Attention": "CrossAttention", "TimestepEmbedding": "Sequential"},
    rules=read_block_rules,
)
TEXT_ENCODERS = tuple(
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        attention_classes=("CLIPAttention",),
        name=partial(lora_text_encoder_name, index),
        group=f"textencoder {index + 1}",
    )
    for index in (0, 1)
)
