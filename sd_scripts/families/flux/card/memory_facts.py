"""How much memory FLUX.1 takes, as counted and as measured."""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, Projection
from sd_scripts.options.spec import OptionValues

WIDTH, MLP_WIDTH = 3_072, 12_288
DOUBLE_BLOCK, SINGLE_BLOCK = 339_831_296, 141_591_808


def tokens(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the tokens of image and text."""
    text = settings.value("t5xxl_max_token_length") or 512
    return width // 16 * (height // 16) * frames + float(text)


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


MEMORY = MemoryFacts(
    values={
        "denoiser": 11_901_408_320,
        "text_encoder1": 123_060_480,
        "text_encoder2": 4_762_310_656,
        "vae": 83_819_683,
    },
    largest_block=DOUBLE_BLOCK,
    largest_weight=3_072 * 18_432,
    lora={"denoiser": 4_786_176, "text_encoder1": 165_888},
    projections=(
        *(projections(WIDTH, 6 * WIDTH, count=2 * 19, rows=0), projections(WIDTH, 3 * WIDTH, count=38, rows=0)),
        projections(WIDTH, 3 * WIDTH, count=2 * 19, rows=1 / 2),  # of text and image, together one row for each token
        projections(WIDTH, WIDTH, count=2 * 19, rows=1 / 2),
        *(projections(WIDTH, MLP_WIDTH, count=38, rows=1 / 2), projections(MLP_WIDTH, WIDTH, count=38, rows=1 / 2)),
        projections(WIDTH, 3 * WIDTH + MLP_WIDTH, count=38, rows=1),
        projections(WIDTH + MLP_WIDTH, WIDTH, count=38, rows=1),
    ),
    measured_rank=16,
    quantized={
        "denoiser": (11_834_228_736, 3_035_136),
        "text_encoder2": (4_630_511_616, 983_040),
    },
    swapped=swapped,
    most_swapped=35,
    units=tokens,
    activations=Activations(
        eager=Growing(7_200_000, 5e7),
        compiled=Growing(6_650_000, 5e7),
        checkpointed=Growing(555_000, 5e7),
        compiled_checkpointed=Growing(548_000, 5e7),
        block_inputs=(19 + 38) * WIDTH * 2,
        budgets={0.5: Growing(3_880_000, 5e7), 0.0: Growing(615_000, 5e7)},
        left=0.2,
    ),
    encode=1_640,
    caption=1.64e8,
)
