"""How much memory Anima takes, as counted, and its activations as measured on an H200."""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, image_tokens, units_of

BLOCKS, BLOCK = 28, 69_206_528
NORMS = 4 * 128
"""Values of a block that are not in Linear layers."""


MEMORY = MemoryFacts(
    values={"denoiser": 2_091_068_928, "text_encoder1": 596_049_920, "vae": 126_892_531},
    largest_block=BLOCK,
    largest_weight=2_048 * 8_192,
    lora={"denoiser": 1_433_600, "text_encoder1": 630_784},
    quantized={"denoiser": (BLOCKS * (BLOCK - NORMS), 1_283_072), "text_encoder1": (440_401_920, 344_064)},
    swapped=lambda blocks_to_swap: blocks_to_swap * BLOCK,
    most_swapped=26,
    units=units_of(image_tokens),
    activations=Activations(
        eager=Growing(2_750_000, 5e7),
        compiled=Growing(2_870_000, 5e7),
        checkpointed=Growing(275_000, 5e7),
        compiled_checkpointed=Growing(275_000, 5e7),
        left=0.2,
    ),
    encode=3_300,
    caption=1e8,
)
