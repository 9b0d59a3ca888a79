"""How much memory HunyuanVideo takes, as counted.

Activations follow from FLUX.1's, whose blocks have the same widths; with checkpointing they are within 4 % of those
measured on an H200.
"""

from __future__ import annotations

from sd_scripts.families.cards.clip_facts import latent_frames
from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, units_of
from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.cards.stream_memory import DOUBLE_BLOCK, projections_of, swapped

DOUBLE_BLOCKS, SINGLE_BLOCKS = 20, 40


def tokens(width: int, height: int, frames: int) -> int:
    """Return the tokens of the longest sequence that attention sees of a sample."""
    return width // 16 * (height // 16) * latent_frames(frames) + LLAMA_TOKENS


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
    projections=projections_of(doubles=DOUBLE_BLOCKS, singles=SINGLE_BLOCKS),
    measured_rank=16,
    quantized={
        "denoiser": (DOUBLE_BLOCKS * 339_738_624 + SINGLE_BLOCKS * 141_557_760, 0),
        "text_encoder1": (30 * 218_103_808, 0),
    },
    swapped=swapped,
    most_swapped=37,
    units=units_of(tokens),
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
