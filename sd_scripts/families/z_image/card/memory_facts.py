"""How much memory Z-Image takes, as counted, and its activations as measured on an H200.

Those with checkpointing are not measured yet: they follow from FLUX.1's by the widths of the layers.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, units_of

BLOCK = 180_910_336
CAPTION = 128
"""Tokens of a usual caption."""


def image_tokens(width: int, height: int, frames: int) -> int:
    """Return the tokens of an image, filled up to a multiple of 32."""
    return -(-(width // 16) * (height // 16) * frames // 32) * 32


MEMORY = MemoryFacts(
    values={"denoiser": 6_154_908_736, "text_encoder1": 3_921_534_720, "vae": 83_819_683},
    largest_block=BLOCK,
    largest_weight=3_840 * 10_240,
    lora={"denoiser": 2_188_800, "text_encoder1": 2_007_040},
    quantized={"denoiser": (6_142_033_920, 1_840_640), "text_encoder1": (3_532_390_400, 1_075_200)},
    swapped=lambda blocks_to_swap: blocks_to_swap * BLOCK,
    most_swapped=28,
    units=units_of(image_tokens, CAPTION),
    activations=Activations(
        eager=Growing(6_500_000, 5e7),
        compiled=Growing(4_750_000, 5e7),
        checkpointed=Growing(480_000, 5e7),
        compiled_checkpointed=Growing(480_000, 5e7),
        block_inputs=30 * 3_840 * 2,
        left=0.2,
    ),
    encode=1_640,
    caption=1.64e8,
)
