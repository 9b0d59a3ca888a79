"""How much memory HunyuanVideo takes, as counted.

Activations follow from FLUX.1's, whose blocks have the same widths; with checkpointing they are within 4 % of those
measured on an H200.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, Projection
from sd_scripts.options.spec import OptionValues

DOUBLE_BLOCKS, SINGLE_BLOCKS = 20, 40
DOUBLE_BLOCK, SINGLE_BLOCK = 339_831_296, 141_591_808
TEXT = 256
"""Tokens of the text."""


def latent_frames(frames: int) -> int:
    return 1 + (frames - 1) // 4


def tokens(width: int, height: int, frames: int) -> int:
    """Return the tokens of the longest sequence that attention sees of a sample."""
    return width // 16 * (height // 16) * latent_frames(frames) + TEXT


def units(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the tokens of clip and text."""
    return float(tokens(width, height, frames))


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """Return how many double and single blocks stay off the device; two single blocks are as large as one double."""
    double = blocks_to_swap // 2
    return double, (blocks_to_swap - double) * 2


def swapped(blocks_to_swap: int) -> int:
    double, single = swap_counts(blocks_to_swap)
    return double * DOUBLE_BLOCK + single * SINGLE_BLOCK


def projections(inputs: int, *outputs: int, count: int, rows: float) -> Projection:
    """Return the memory facts of `count` layers; `rows` of their input for each token."""
    return Projection(inputs=inputs, outputs=outputs, count=count, rows=rows, swappable=True)


WIDTH, MLP_WIDTH = 3_072, 12_288
BOTH = 2 * DOUBLE_BLOCKS
"""Layers of double blocks: each block has one for the clip and one for the text."""
LANGUAGE_LAYER = 218_112_000
MEMORY = MemoryFacts(
    values={
        "denoiser": 12_821_012_544,
        "text_encoder1": 7_505_186_816 - 4_096 - 2 * LANGUAGE_LAYER,  # without the norm and the layers it does not read
        "text_encoder2": 123_060_480,
        "vae": 246_478_803,
    },
    largest_block=DOUBLE_BLOCK,
    largest_weight=3_072 * 21_504,
    lora={"denoiser": 3_686_400, "text_encoder1": 2_457_600, "text_encoder2": 165_888},
    projections=(
        projections(WIDTH, 6 * WIDTH, count=BOTH, rows=0),
        projections(WIDTH, 3 * WIDTH, count=SINGLE_BLOCKS, rows=0),
        projections(WIDTH, 3 * WIDTH, count=BOTH, rows=1 / 2),  # of text and clip, together one row for each token
        projections(WIDTH, WIDTH, count=BOTH, rows=1 / 2),
        *(projections(WIDTH, MLP_WIDTH, count=BOTH, rows=1 / 2), projections(MLP_WIDTH, WIDTH, count=BOTH, rows=1 / 2)),
        projections(WIDTH, 3 * WIDTH + MLP_WIDTH, count=SINGLE_BLOCKS, rows=1),
        projections(WIDTH + MLP_WIDTH, WIDTH, count=SINGLE_BLOCKS, rows=1),
    ),
    measured_rank=16,
    quantized={
        "denoiser": (DOUBLE_BLOCKS * 339_738_624 + SINGLE_BLOCKS * 141_557_760, 0),
        "text_encoder1": (30 * 218_103_808, 0),
    },
    swapped=swapped,
    most_swapped=37,
    units=units,
    activations=Activations(
        eager=Growing(7_500_000, 5e7),
        compiled=Growing(6_900_000, 5e7),
        checkpointed=Growing(580_000, 5e7),
        compiled_checkpointed=Growing(570_000, 5e7),
        left=0.2,
    ),
    encode=5_000,
    caption=1.9e8,
)
