"""How much memory Qwen-Image takes, as counted.

Activations are not measured yet: they follow from FLUX.1's, whose blocks have the same widths.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, image_tokens, units_of

BLOCKS, BLOCK = 60, 339_831_296
CAPTION = 128
"""Tokens of a usual caption."""


MEMORY = MemoryFacts(
    values={"denoiser": 20_430_401_088, "text_encoder1": 7_070_619_136, "vae": 126_892_531},
    largest_block=BLOCK,
    largest_weight=3_072 * 18_432,
    lora={"denoiser": 9_216_000, "text_encoder1": 2_523_136},
    quantized={"denoiser": (BLOCKS * 339_738_624, 5_529_600), "text_encoder1": (6_525_288_448, 1_390_592)},
    swapped=lambda blocks_to_swap: blocks_to_swap * BLOCK,
    most_swapped=58,
    units=units_of(image_tokens, CAPTION),
    activations=Activations(
        eager=Growing(8_420_000, 5e7),
        compiled=Growing(7_000_000, 5e7),
        checkpointed=Growing(575_000, 5e7),
        compiled_checkpointed=Growing(568_000, 5e7),
        block_inputs=BLOCKS * 3_072 * 2,
        left=0.2,
    ),
    encode=3_300,
    caption=1.64e8,
)
