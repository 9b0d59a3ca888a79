"""FramePack's components: how each is created from its files and stored in memory, and which do not fit together."""

from collections.abc import Mapping

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.blocks.streams import Modulation
from sd_scripts.families.common.components import DENOISER, WeightSource
from sd_scripts.families.common.encoders.vision import SIGLIP_LAYOUT
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer
from sd_scripts.families.hunyuan_video import load as hunyuan_video

IMAGE_ENCODER = "text_encoder3"
BLOCK_LISTS = BlockLists(
    names={"transformer_blocks": "double", "single_transformer_blocks": "single"},
    counts=swap_counts,
    few_tokens=Modulation,
)


LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: FramePackTransformer(FramePackParams.of(shapes)), quantizable=BLOCK_LISTS.weights
    ),
    **hunyuan_video.TEXT_LAYOUTS,
    IMAGE_ENCODER: SIGLIP_LAYOUT,
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: FramePackParams = params_of(sources)
    return {**hunyuan_video.expected(sources), IMAGE_ENCODER: ("hidden_size", params.image_width)}
