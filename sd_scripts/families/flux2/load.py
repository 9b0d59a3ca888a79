"""FLUX.2's components: how each is created from its files and stored in memory, and which do not fit together."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders.qwen3 import LANGUAGE_LINEAR, QWEN3, config_of, language_layers, qwen3
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.flux2 import keys
from sd_scripts.families.flux2.card.memory_facts import swap_counts
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer
from sd_scripts.families.flux2.text import LAYERS
from sd_scripts.families.flux2.vae import make_vae
from sd_scripts.library.files import ldm_layout

TEXT_ENCODER = "text_encoder1"
BLOCK_LISTS = BlockLists(names={"double_blocks": "double", "single_blocks": "single"}, counts=swap_counts)

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: Flux2Transformer(Flux2Params.of(shapes)),
        unify=keys.original_layout,
        quantizable=BLOCK_LISTS.weights,
    ),
    TEXT_ENCODER: Layout(
        make=lambda shapes: qwen3(**config_of(shapes)),
        unify=partial(language_layers, last=LAYERS[-1]),
        tokenizer=QWEN3,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: Layout(
        make=lambda shapes: make_vae(**ldm_layout.vae_config(shapes)),
        unify=keys.vae_layout,
        read=keys.read_vae,
        write=keys.vae_file,
    ),
}


def prepare(components: Components) -> None:
    encoder: Any = components.sources[TEXT_ENCODER].empty
    components.extras = {"layers": tuple(min(number, encoder.config.num_hidden_layers) for number in LAYERS)}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: Flux2Params = params_of(sources)
    return {
        TEXT_ENCODER: ("hidden_size", params.text_width // len(LAYERS)),
        VAE: ("latent_channels", params.channels // 4),
    }
