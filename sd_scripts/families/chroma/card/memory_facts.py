"""How much memory Chroma takes, as counted: FLUX.1's blocks without their modulation layers.

Activations of eager steps are as measured on an H200. All others are FLUX.1's, whose blocks have the same widths.
"""

from __future__ import annotations

from dataclasses import replace

from sd_scripts.families.cards.memory_facts import Growing, image_tokens, units_of
from sd_scripts.families.cards.stream_memory import DOUBLE_BLOCK, MLP_WIDTH, SINGLE_BLOCK, WIDTH, swap_counts
from sd_scripts.families.flux.card.memory_facts import MEMORY as FLUX

DOUBLES, SINGLES = 19, 38
ROWS = DOUBLES * 2 * 6 * WIDTH + SINGLES * 3 * WIDTH
"""Outputs of FLUX.1's modulation layers."""
DOUBLE = DOUBLE_BLOCK - 2 * 6 * WIDTH * (WIDTH + 1)
SINGLE = SINGLE_BLOCK - 3 * WIDTH * (WIDTH + 1)
CAPTION = 128
"""Tokens of a usual caption."""


def swapped(blocks_to_swap: int) -> int:
    double, single = swap_counts(blocks_to_swap)
    return double * DOUBLE + single * SINGLE


_WEIGHTS, _OUTPUTS = FLUX.quantized["denoiser"]
MEMORY = replace(
    FLUX,
    values={
        "denoiser": 8_899_983_424,
        "text_encoder1": FLUX.values["text_encoder2"],
        "vae": FLUX.values["vae"],
    },
    largest_block=DOUBLE,
    largest_weight=WIDTH * MLP_WIDTH,
    lora={"denoiser": FLUX.lora["denoiser"] - (2 * DOUBLES + SINGLES) * WIDTH - ROWS},
    projections=FLUX.projections[2:],  # without the modulation layers
    quantized={
        "denoiser": (_WEIGHTS - ROWS * WIDTH, _OUTPUTS - ROWS),
        "text_encoder1": FLUX.quantized["text_encoder2"],
    },
    swapped=swapped,
    units=units_of(image_tokens, CAPTION),
    activations=replace(
        FLUX.activations,
        eager=Growing(6_100_000, 5e7),
    ),
)
