"""FramePack's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.components import DENOISER, WeightSource
from sd_scripts.families.common.encoders.vision import SIGLIP_LAYOUT
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import network_problems, width_problems
from sd_scripts.families.framepack import lora
from sd_scripts.families.framepack.card import CARD
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer, Modulation
from sd_scripts.families.hunyuan_video.load import TEXT_LAYOUTS, sizes_expected_by
from sd_scripts.settings.settings import Settings

IMAGE_ENCODER = "text_encoder3"
BLOCK_LISTS = BlockLists(
    names={"transformer_blocks": "double", "single_transformer_blocks": "single"},
    counts=swap_counts,
    few_tokens=Modulation,
)
LINEAR = re.compile(r"(transformer_blocks|single_transformer_blocks)\..*\.weight")
"""Names of weights that can be quantized."""


LAYOUTS = {
    DENOISER: Layout(make=lambda shapes: FramePackTransformer(FramePackParams.of(shapes)), quantizable=LINEAR),
    **TEXT_LAYOUTS,
    IMAGE_ENCODER: SIGLIP_LAYOUT,
}


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: FramePackParams = transformer.params
    of_image = {IMAGE_ENCODER: ("hidden_size", params.image_width, "vectors of {} values")}
    return [
        *width_problems(sources, CARD, {**sizes_expected_by(params), **of_image}),
        *BLOCK_LISTS.swap_problems(transformer, settings),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]
