"""How much memory Wan takes, as counted.

Activations follow from FLUX.1's by the widths of the layers; with checkpointing they are as measured on an H200.
"""

from __future__ import annotations

from collections.abc import Callable

from sd_scripts.families.cards.clip_facts import latent_frames
from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, units_of


def tokens(width: int, height: int, frames: int) -> int:
    return width // 16 * (height // 16) * latent_frames(frames)


def memory_of(
    *, width: int, mlp_width: int, blocks: int, values: int, vae: int, tokens: Callable[[int, int, int], int]
) -> MemoryFacts:
    """Return the facts of a model with these sizes, whose clips have `tokens`, its units."""
    weights = 8 * width**2 + 2 * width * mlp_width
    block = weights + 21 * width + mlp_width
    rows = 9 * width + mlp_width
    kept = blocks * 2 * (17 * width + 2 * mlp_width)  # bytes of a token that eager blocks keep, in half precision
    checkpointed = blocks * 2 * width + RECOMPUTED * kept / blocks
    return MemoryFacts(
        values={"denoiser": values, "text_encoder1": 5_680_910_336, "vae": vae},
        largest_block=block,
        largest_weight=width * mlp_width,
        lora={"denoiser": blocks * (16 * width + 2 * (width + mlp_width)), "text_encoder1": 0},
        quantized={
            "denoiser": (blocks * weights, blocks * rows),
            "text_encoder1": (24 * (4 * 4096**2 + 3 * 4096 * 10_240), 24 * (5 * 4096 + 2 * 10_240)),
        },
        swapped=lambda blocks_to_swap: blocks_to_swap * block,
        most_swapped=blocks - 2,
        units=units_of(tokens),
        activations=Activations(
            eager=Growing(kept, 5e7),
            compiled=Growing(0.8 * kept, 5e7),
            checkpointed=Growing(checkpointed, 5e7),
            compiled_checkpointed=Growing(0.885 * checkpointed, 5e7),
            left=0.2,
        ),
        encode=3_300,
        caption=5e8,
    )


RECOMPUTED = 1.5
"""Activations that a checkpointed block recomputes, relative to those of an eager one, as measured for FLUX.1."""
MEMORY = memory_of(width=5120, mlp_width=13_824, blocks=40, values=14_288_491_584, vae=126_892_531, tokens=tokens)
MEMORY_OF_1_3B = memory_of(width=1536, mlp_width=8_960, blocks=30, values=1_418_996_800, vae=126_892_531, tokens=tokens)
