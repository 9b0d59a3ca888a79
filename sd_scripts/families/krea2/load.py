"""Krea 2's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from functools import partial

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.encoders.causal_vae import vae_config, vae_from_single_file
from sd_scripts.families.common.encoders.qwen3 import LANGUAGE_LINEAR, QWEN3, config_of, language_layers, qwen3
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.krea2 import keys
from sd_scripts.families.krea2.model import Krea2Params, Krea2Transformer
from sd_scripts.families.krea2.text import LAYERS
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage

TEXT_ENCODER = "text_encoder1"
ROPE_THETA = 5e6
"""Of Qwen3-VL-4B, as in its config.json; Qwen3's is 1e6."""
BLOCK_LISTS = BlockLists(names={"blocks": ""})
LINEAR = re.compile(r"(transformer_)?blocks\..*\.weight")
"""Names, and keys in files, of weights that can be quantized."""

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: Krea2Transformer(Krea2Params.of(shapes)), unify=keys.original_layout, quantizable=LINEAR
    ),
    TEXT_ENCODER: Layout(
        make=lambda shapes: qwen3(**config_of(shapes, ROPE_THETA)),
        unify=partial(language_layers, last=LAYERS[-1]),
        tokenizer=QWEN3,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: Layout(make=lambda shapes: AutoencoderKLQwenImage(**vae_config(shapes)), unify=vae_from_single_file),
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: Krea2Params = params_of(sources)
    return {TEXT_ENCODER: ("hidden_size", params.text_width), VAE: ("z_dim", params.channels // 4)}
