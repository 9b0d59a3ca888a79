"""How much memory SDXL takes, as counted and as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sd_scripts.families.memory_facts import Activations, Growing, MemoryFacts

if TYPE_CHECKING:
    from sd_scripts.options.settings import Settings

SWAPPABLE_BLOCK = 34_755_840
"""Values of each of the 60 largest transformer blocks."""


def latent_positions(width: int, height: int, frames: int, settings: Settings) -> float:
    """Return the positions of the latents."""
    return width / 8 * (height / 8) * frames


MEMORY = MemoryFacts(
    values={
        "denoiser": 2_567_463_684,
        "text_encoder1": 123_060_480,
        "text_encoder2": 694_659_840,
        "vae": 83_653_863,
    },
    largest_block=49_164_800,
    largest_weight=1_280 * 2_560 * 9,
    lora={"denoiser": 2_659_840, "text_encoder1": 165_888, "text_encoder2": 737_280},
    lora_conv=355_840,
    factored_state=0.38,
    quantized={
        "denoiser": (2_201_600_000, 1_428_160),
        "text_encoder1": (84_934_656, 82_944),
        "text_encoder2": (629_145_600, 368_640),
    },
    swapped=lambda blocks_to_swap: blocks_to_swap * SWAPPABLE_BLOCK,
    most_swapped=58,
    units=latent_positions,
    activations=Activations(
        eager=Growing(417_700, 9e7),
        compiled=Growing(353_300, 4e8),
        checkpointed=Growing(39_000, 1.5e8),
        compiled_checkpointed=Growing(39_000, 4e8),
        left=0.6,
    ),
    encode=1_640,
    caption=4e6,
)
