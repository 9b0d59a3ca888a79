"""How much memory Qwen-Image-Edit takes, as counted: as Qwen-Image, whose text encoder also has its vision tower."""

from dataclasses import replace

from sd_scripts.families.qwen_image.card.memory_facts import CAPTION as USUAL
from sd_scripts.families.qwen_image.card.memory_facts import MEMORY as QWEN_IMAGE

VISION = 676_550_144
"""Values of the vision tower of Qwen2.5-VL-7B."""

CAPTION = 360
"""Tokens of a usual caption with one image, as edit-2509 sees it."""

_ENCODER = QWEN_IMAGE.values["text_encoder1"] + VISION
MEMORY = replace(
    QWEN_IMAGE,
    values={**QWEN_IMAGE.values, "text_encoder1": _ENCODER},
    caption=QWEN_IMAGE.caption * CAPTION / USUAL,
)
