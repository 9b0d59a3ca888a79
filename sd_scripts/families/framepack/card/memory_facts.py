"""How much memory FramePack takes, as counted: HunyuanVideo's blocks over one section, and its image encoder."""

from __future__ import annotations

from dataclasses import replace

from sd_scripts.families.cards.memory_facts import units_of
from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.hunyuan_video.card.memory_facts import MEMORY as HUNYUAN_VIDEO

IMAGE = 729
"""Tokens of the start image as SigLIP sees it."""


def tokens(width: int, height: int, frames: int) -> int:
    """Return the tokens of the longest sequence that attention sees: a section of any clip, or an image."""
    rows, columns = height // 16, width // 16
    predicted = 9 if frames > 1 else 1
    middle = -(-rows // 2) * -(-columns // 2)
    far = 4 * -(-rows // 4) * -(-columns // 4)
    return (predicted + 2) * rows * columns + middle + far + IMAGE + LLAMA_TOKENS


MEMORY = replace(
    HUNYUAN_VIDEO,
    values={**HUNYUAN_VIDEO.values, "denoiser": 12_874_314_816, "text_encoder3": 428_225_600},
    lora={**HUNYUAN_VIDEO.lora, "denoiser": 4_300_800},
    projections=(),  # nothing is folded into them
    units=units_of(tokens),
)
