"""HunyuanVideo's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.layouts import Layout, clip_l, make_text_encoder
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, network_problems, width_problems
from sd_scripts.families.hunyuan_video import keys, lora
from sd_scripts.families.hunyuan_video.card import CARD, TRANSFORMERS
from sd_scripts.families.hunyuan_video.card.memory_facts import swap_counts
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer, Modulation
from sd_scripts.families.hunyuan_video.vae import make_vae
from sd_scripts.library.files.state_dicts import Shapes
from sd_scripts.library.text.tokenizers import CLIP, LLAMA
from sd_scripts.settings.settings import Settings

LLM, CLIP_L = "text_encoder1", "text_encoder2"
BLOCK_LISTS = BlockLists(
    names={"double_blocks": "double", "single_blocks": "single"}, counts=swap_counts, few_tokens=Modulation
)
LINEAR = re.compile(r"(double_blocks|single_blocks)\..*\.weight")
LANGUAGE_LINEAR = re.compile(r"layers\..*\.weight")
"""Names of weights that can be quantized."""


def make_language_model(shapes: Shapes) -> nn.Module:
    """Return the layers of LLaMA whose output HunyuanVideo reads, without the final norm."""
    model: Any = make_text_encoder("LlamaModel", "LlamaConfig", keys.language_config(shapes))
    model.norm = nn.Identity()
    return cast(nn.Module, model)


TEXT_LAYOUTS = {
    LLM: Layout(make=make_language_model, unify=keys.language_model, tokenizer=LLAMA, quantizable=LANGUAGE_LINEAR),
    CLIP_L: clip_l(tokenizer=CLIP),
    VAE: Layout(make=make_vae),
}
LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: HunyuanVideoTransformer(HunyuanParams.of(shapes)),
        unify=lambda file: keys.from_diffusers(file) if TRANSFORMERS[1] in file else file,
        quantizable=LINEAR,
    ),
    **TEXT_LAYOUTS,
}


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    return [
        *width_problems(sources, CARD, sizes_expected_by(transformer.params)),
        *BLOCK_LISTS.swap_problems(transformer, settings),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]


def sizes_expected_by(params: HunyuanParams) -> Expected:
    return {
        LLM: ("hidden_size", params.text_width, "vectors of {} values"),
        CLIP_L: ("hidden_size", params.pooled_width, "vectors of {} values"),
        VAE: ("latent_channels", params.channels, "latents of {} channels"),
    }
