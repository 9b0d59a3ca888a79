"""How much memory Krea 2 takes, as counted.

Activations of compiled steps are as measured on an H200. For eager ones the tensors that a block's backward keeps are
counted, which gives FLUX.1's measured bytes to 1%.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, image_tokens, units_of

BLOCKS, BLOCK, NOT_LINEAR = 28, 434_159_872, 49_408
"""Number of blocks, values in a block, and how many of these are outside its Linear layers."""
CAPTION = 128
"""Tokens of a usual caption."""


MEMORY = MemoryFacts(
    values={"denoiser": 12_820_073_036, "text_encoder1": 3_921_534_720, "vae": 126_892_531},
    largest_block=BLOCK,
    largest_weight=6_144 * 16_384,
    lora={"denoiser": 3_665_805, "text_encoder1": 2_007_040},
    quantized={"denoiser": (BLOCKS * (BLOCK - NOT_LINEAR), 1_691_648), "text_encoder1": (3_532_390_400, 1_075_200)},
    swapped=lambda blocks_to_swap: blocks_to_swap * BLOCK,
    most_swapped=26,
    units=units_of(image_tokens, CAPTION),
    activations=Activations(
        eager=Growing(8_260_000, 5.1e8),  # with the text fusion
        compiled=Growing(7_120_000, 5.1e8),
        checkpointed=Growing(700_000, 2.8e8),
        compiled_checkpointed=Growing(700_000, 2.8e8),
        left=0.2,
    ),
    encode=3_300,
    caption=1.64e8,
)
