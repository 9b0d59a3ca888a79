"""The layers that LoRA adapts in SDXL, and their names in LoRA files."""

from functools import partial

from sd_scripts.families.sdxl.by_block import read_block_rules
from sd_scripts.families.sdxl.keys import lora_text_encoder_name, lora_unet_name
from sd_scripts.networks.targets import LoraTarget

DOWN, MIDDLE, UP = 9, 3, 9
FIRST_OF = {"input": 1, "middle": 1 + DOWN, "output": 1 + DOWN + MIDDLE}
LAST = 1 + DOWN + MIDDLE + UP


def block_of(name: str) -> int | None:
    """Return the number of the U-Net block, 0 to 22: embeddings, 9 down, 3 middle, 9 up, out. None for text encoders.

    `lora_unet_input_blocks_4_1_proj_in` -> 5
    """
    if not name.startswith("lora_unet_"):
        return None
    words = name.removeprefix("lora_unet_").split("_")
    if words[0] in FIRST_OF:
        return FIRST_OF[words[0]] + int(words[2])
    return 0 if words[0] in ("time", "label") else LAST


UNET = LoraTarget(
    classes=("Transformer2DModel",),
    conv_classes=("ResnetBlock2D", "Downsample2D", "Upsample2D"),
    name=lora_unet_name,
    alias=lambda path: "lora_unet_" + path.replace(".", "_"),
    class_aliases={"Attention": "CrossAttention", "TimestepEmbedding": "Sequential"},
    rules=partial(read_block_rules, block=block_of, counts=(DOWN, MIDDLE, UP)),
)
TEXT_ENCODERS = tuple(
    LoraTarget(
        classes=("CLIPAttention", "CLIPMLP"),
        name=partial(lora_text_encoder_name, index),
        group=f"textencoder {index + 1}",
    )
    for index in (0, 1)
)
