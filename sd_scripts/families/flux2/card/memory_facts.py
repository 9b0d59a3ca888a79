"""How much memory FLUX.2 klein 9B takes, as counted; klein 4B takes less than half of it.

Activations are not measured yet: they follow from FLUX.1's by the widths of the layers.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts
from sd_scripts.options.spec import OptionValues

DOUBLES, SINGLES = 8, 24
DOUBLE, SINGLE = 436_208_128, 218_104_064
NORMS = 4 * 128, 2 * 128
"""Values of a block that are not in Linear layers."""
TEXT = 512
"""Tokens of every caption, padding included."""


def tokens(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the tokens of image and text."""
    return float(width // 16 * (height // 16) * frames + TEXT)


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """Return how many double and single blocks stay off the device; two single blocks are as large as one double."""
    double = blocks_to_swap // 3
    return double, (blocks_to_swap - double) * 2


def swapped(blocks_to_swap: int) -> int:
    double, single = swap_counts(blocks_to_swap)
    return double * DOUBLE + single * SINGLE


MEMORY = MemoryFacts(
    values={"denoiser": 9_078_581_248, "text_encoder1": 5_831_883_520, "vae": 84_046_115},
    largest_block=DOUBLE,
    largest_weight=4_096 * 24_576,
    lora={"denoiser": 2_588_672, "text_encoder1": 2_045_952},
    quantized={
        "denoiser": (DOUBLES * (DOUBLE - NORMS[0]) + SINGLES * (SINGLE - NORMS[1]), 1_703_936),
        "text_encoder1": (5_209_325_568, 1_050_624),
    },
    swapped=swapped,
    most_swapped=16,
    units=tokens,
    activations=Activations(
        eager=Growing(6_000_000, 5e7),
        compiled=Growing(5_500_000, 5e7),
        checkpointed=Growing(480_000, 5e7),
        compiled_checkpointed=Growing(480_000, 5e7),
        left=0.2,
    ),
    encode=1_640,
    caption=1.64e8,
)
