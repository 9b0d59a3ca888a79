"""How much memory FLUX.2 klein takes, as counted, and its activations as measured on an H200."""

from __future__ import annotations

from sd_scripts.families.cards.memory_facts import Activations, Growing, MemoryFacts, image_tokens, units_of
from sd_scripts.families.flux2.card.options import Flux2ModelOptions
from sd_scripts.options.spec import OptionValues

HEAD = 128
ENCODED_LAYERS = 27
"""Layers of Qwen3 that are loaded."""
TEXT = 512
"""Tokens of every caption, padding included."""


def swap_counts(blocks_to_swap: int) -> tuple[int, int]:
    """Return how many double and single blocks stay off the device; two single blocks are as large as one double."""
    double = blocks_to_swap // 3
    return double, (blocks_to_swap - double) * 2


def memory_of(
    *, width: int, doubles: int, singles: int, values: int, most_swapped: int, text_width: int, text_mlp_width: int
) -> MemoryFacts:
    """Return the facts of a model with these sizes, whose text encoder has 32 heads of queries and 8 of keys."""
    double, single = 26 * width**2, 13 * width**2
    """Values of Linear layers of a block."""
    queries, keys = 32 * HEAD, 8 * HEAD
    of_layer = 2 * text_width * (queries + keys) + 3 * text_width * text_mlp_width
    encoder = ENCODED_LAYERS * of_layer
    norms = ENCODED_LAYERS * (2 * text_width + 2 * HEAD)
    kept = 35.7 * width * (2 * doubles + singles)  # bytes of a token that eager blocks keep
    checkpointed = 2 * width * (doubles + singles) + 1.5 * kept / (2 * doubles + singles)

    def swapped(blocks_to_swap: int) -> int:
        many_double, many_single = swap_counts(blocks_to_swap)
        return many_double * (double + 4 * HEAD) + many_single * (single + 2 * HEAD)

    return MemoryFacts(
        values={"denoiser": values, "text_encoder1": encoder + 151_936 * text_width + norms, "vae": 84_046_115},
        largest_block=double + 4 * HEAD,
        largest_weight=6 * width**2,
        lora={
            "denoiser": (34 * doubles + 15 * singles) * width,
            "text_encoder1": ENCODED_LAYERS
            * (5 * text_width + 2 * (queries + keys) + 2 * text_width + 3 * text_mlp_width),
        },
        quantized={
            "denoiser": (doubles * double + singles * single, (22 * doubles + 10 * singles) * width),
            "text_encoder1": (encoder, ENCODED_LAYERS * (queries + 2 * keys + 2 * text_width + 2 * text_mlp_width)),
        },
        swapped=swapped,
        most_swapped=most_swapped,
        units=units_of(image_tokens, TEXT),
        activations=Activations(
            eager=Growing(kept, 5e7),
            compiled=Growing(0.87 * kept, 5e7),
            checkpointed=Growing(checkpointed, 5e7),
            compiled_checkpointed=Growing(checkpointed, 5e7),
            block_inputs=2 * width * (doubles + singles),
            left=0.2,
        ),
        encode=1_640,
        caption=40_000.0 * text_width,
    )


KLEIN_9B = memory_of(
    **{"width": 4096, "doubles": 8, "singles": 24, "values": 9_078_581_248},
    **{"most_swapped": 16, "text_width": 4096, "text_mlp_width": 12_288},
)
KLEIN_4B = memory_of(
    **{"width": 3072, "doubles": 5, "singles": 20, "values": 3_875_544_576},
    **{"most_swapped": 11, "text_width": 2560, "text_mlp_width": 9_728},
)


def memory_named(settings: OptionValues) -> MemoryFacts | None:
    """Return the memory of klein 4B if the settings name it."""
    return KLEIN_4B if settings[Flux2ModelOptions].flux2_version in ("klein-base-4b", "klein-4b") else None
