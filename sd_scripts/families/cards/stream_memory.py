"""Sizes of double and single blocks of FLUX.1's widths, which HunyuanVideo's transformer has, too."""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Projection

WIDTH, MLP_WIDTH = 3_072, 12_288
DOUBLE_BLOCK, SINGLE_BLOCK = 339_831_296, 141_591_808
"""Values of a block."""


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """Return how many double and single blocks stay off the device; two single blocks are as large as one double."""
    double = blocks_to_swap // 2
    return double, (blocks_to_swap - double) * 2


def swapped(blocks_to_swap: int) -> int:
    double, single = swap_counts(blocks_to_swap)
    return double * DOUBLE_BLOCK + single * SINGLE_BLOCK


def projections_of(doubles: int, singles: int) -> tuple[Projection, ...]:
    """Return the memory facts of the blocks' layers, modulations first."""

    def layers(inputs: int, outputs: int, count: int, rows: float) -> Projection:
        """`rows` of their input for each token."""
        return Projection(inputs=inputs, outputs=(outputs,), count=count, rows=rows, swappable=True)

    both = 2 * doubles  # layers of double blocks: one for the text and one for the image, together one row a token
    return (
        layers(WIDTH, 6 * WIDTH, both, 0),
        layers(WIDTH, 3 * WIDTH, singles, 0),
        layers(WIDTH, 3 * WIDTH, both, 1 / 2),
        layers(WIDTH, WIDTH, both, 1 / 2),
        layers(WIDTH, MLP_WIDTH, both, 1 / 2),
        layers(MLP_WIDTH, WIDTH, both, 1 / 2),
        layers(WIDTH, 3 * WIDTH + MLP_WIDTH, singles, 1),
        layers(WIDTH + MLP_WIDTH, WIDTH, singles, 1),
    )
