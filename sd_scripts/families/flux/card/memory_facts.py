"""How much memory FLUX.1 takes, as counted and as measured."""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts
from sd_scripts.families.cards.stream_memory import DOUBLE_BLOCK, WIDTH, projections_of, swapped
from sd_scripts.options.spec import OptionValues


def tokens(width: int, height: int, frames: int, settings: OptionValues) -> float:
    """Return the tokens of image and text."""
    text = settings.value("t5xxl_max_token_length") or 512
    return width // 16 * (height // 16) * frames + float(text)


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
    projections=projections_of(doubles=19, singles=38),
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
