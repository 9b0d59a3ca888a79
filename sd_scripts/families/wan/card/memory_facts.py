"""How much memory Wan 2.1 T2V 14B takes, as counted.

Activations are not measured yet: they follow from FLUX.1's, by the widths of the layers.
"""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts
from sd_scripts.options.spec import OptionValues

WIDTH, MLP_WIDTH, BLOCKS = 5120, 13824, 40
WEIGHTS = 8 * WIDTH**2 + 2 * WIDTH * MLP_WIDTH
"""Values of the matrices of a block."""
BLOCK = WEIGHTS + 9 * WIDTH + MLP_WIDTH + 12 * WIDTH
KEPT = BLOCKS * 2 * (17 * WIDTH + 2 * MLP_WIDTH)
"""Bytes for each token that eager blocks keep for the backward pass in half precision."""
CHECKPOINTED = BLOCKS * 2 * WIDTH + 1.5 * KEPT / BLOCKS
"""Inputs of all blocks, and what one of them recomputes, as a share of its activations that was measured for FLUX.1."""


def latent_frames(frames: int) -> int:
    return 1 + (frames - 1) // 4


def tokens(width: int, height: int, frames: int) -> int:
    return width // 16 * (height // 16) * latent_frames(frames)


def units(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the tokens of a clip."""
    return float(tokens(width, height, frames))


MEMORY = MemoryFacts(
    values={"denoiser": 14_288_491_584, "text_encoder1": 5_680_910_336, "vae": 126_892_531},
    largest_block=BLOCK,
    largest_weight=WIDTH * MLP_WIDTH,
    lora={"denoiser": BLOCKS * (16 * WIDTH + 2 * (WIDTH + MLP_WIDTH)), "text_encoder1": 0},
    quantized={
        "denoiser": (BLOCKS * WEIGHTS, BLOCKS * (9 * WIDTH + MLP_WIDTH)),
        "text_encoder1": (24 * (4 * 4096**2 + 3 * 4096 * 10_240), 24 * (5 * 4096 + 2 * 10_240)),
    },
    swapped=lambda blocks_to_swap: blocks_to_swap * BLOCK,
    most_swapped=BLOCKS - 2,
    units=units,
    activations=Activations(
        eager=Growing(KEPT, 5e7),
        compiled=Growing(0.8 * KEPT, 5e7),
        checkpointed=Growing(CHECKPOINTED, 5e7),
        compiled_checkpointed=Growing(0.95 * CHECKPOINTED, 5e7),
        left=0.2,
    ),
    encode=3_300,
    caption=5e8,
)
