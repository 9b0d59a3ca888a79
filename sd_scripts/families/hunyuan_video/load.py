"""HunyuanVideo's components: how each is created from its files and stored in memory, and which do not fit together."""

from collections.abc import Mapping

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.blocks.streams import Modulation
from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.encoders import llama
from sd_scripts.families.common.encoders.hunyuan_vae import make_vae
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.hunyuan_video.keys import KEYS
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer

BLOCK_LISTS = BlockLists(
    names={"double_blocks": "double", "single_blocks": "single"}, counts=swap_counts, few_tokens=Modulation
)


TEXT_LAYOUTS = {**llama.LAYOUTS, VAE: Layout(make=make_vae)}
LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: HunyuanVideoTransformer(HunyuanParams.of(shapes)),
        unify=KEYS.from_diffusers,
        quantizable=BLOCK_LISTS.weights,
    ),
    **TEXT_LAYOUTS,
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: HunyuanParams = params_of(sources)
    return {
        llama.LLM_NAME: ("hidden_size", params.text_width),
        llama.CLIP_NAME: ("hidden_size", params.pooled_width),
        VAE: ("latent_channels", params.channels),
    }
