"""How much memory SDXL takes, as counted and as measured."""

from __future__ import annotations

from typing import Any

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, Projection
from sd_scripts.options.spec import OptionValues

SWAPPABLE_BLOCK = 34_755_840
"""Values of each of the 60 largest transformer blocks."""
CONTEXT = 2_048
"""Width of the text encoders' outputs."""


def latent_positions(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the positions of the latents."""
    return width / 8 * (height / 8) * frames


def projections(width: int, depth: int, rows: float, *, swappable: bool) -> tuple[Projection, ...]:
    """Return the memory facts of all transformer blocks of this width, `depth` of them."""
    inner = 4 * width
    each: dict[str, Any] = {"rows": rows, "swappable": swappable}
    return (
        Projection(inputs=width, outputs=(width,) * 3, count=depth, **each),  # q, k and v of self-attention
        Projection(inputs=width, outputs=(width,), count=depth, **each),  # q of cross-attention
        Projection(inputs=CONTEXT, outputs=(width,) * 2, count=depth, swappable=swappable),  # and its k and v
        Projection(inputs=width, outputs=(width,), count=2 * depth, kept=False, **each),  # outputs of attention
        Projection(inputs=width, outputs=(2 * inner,), count=depth, **each),  # GEGLU
        Projection(inputs=inner, outputs=(width,), count=depth, kept=False, **each),
    )


def around(width: int, count: int, rows: float) -> Projection:
    """Return the projections before and after the blocks of `count` transformers of this width."""
    return Projection(inputs=width, outputs=(width,), count=2 * count, rows=rows, kept=False)


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
    projections=(
        *projections(640, 10, rows=1 / 4, swappable=False),
        *projections(1_280, 60, rows=1 / 16, swappable=True),
        around(640, 5, rows=1 / 4),
        around(1_280, 6, rows=1 / 16),
    ),
    folded_kinds=("lora", "dora", "lokr"),
    measured_rank=32,
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
        float32_norms=40_300,
        compiled=Growing(353_300, 4e8),
        checkpointed=Growing(39_000, 1.5e8),
        compiled_checkpointed=Growing(39_000, 4e8),
        budgets={0.5: Growing(192_000, 4e8), 0.0: Growing(48_000, 4e8)},
        left=0.6,
    ),
    encode=1_640,
    caption=4e6,
)
