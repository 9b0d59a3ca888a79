"""Z-Image's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from functools import partial

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.common.encoders.qwen3 import LANGUAGE_LINEAR, QWEN3, config_of, language_layers, qwen3
from sd_scripts.families.common.layouts import Layout, autoencoder
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.z_image import keys
from sd_scripts.families.z_image.model import Modulation, ZImageParams, ZImageTransformer
from sd_scripts.families.z_image.text import LAYERS

TEXT_ENCODER = "text_encoder1"
BLOCK_LISTS = BlockLists(
    names={"noise_refiner": "", "context_refiner": "", "layers": ""},
    counts=lambda blocks_to_swap: (0, 0, blocks_to_swap),
    few_tokens=Modulation,
)
COMPILED = BlockLists(names={"noise_refiner": "", "layers": ""})
"""The blocks that see an image. The refiners of captions, which see a few tokens, would need a graph of their own."""
LINEAR = re.compile(
    r"(layers|noise_refiner|context_refiner)\..*\.(to_[qkv]|to_out\.0|qkv|out|w[123]|adaLN_modulation\.0)\.weight"
)
"""Names, and keys in files, of weights that can be quantized."""

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: ZImageTransformer(ZImageParams.of(shapes)), unify=keys.to_diffusers, quantizable=LINEAR
    ),
    TEXT_ENCODER: Layout(
        make=lambda shapes: qwen3(**config_of(shapes)),
        unify=partial(language_layers, last=LAYERS),
        tokenizer=QWEN3,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: autoencoder(flux_vae.CONFIG),
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: ZImageParams = params_of(sources)
    return {TEXT_ENCODER: ("hidden_size", params.text_width), VAE: ("latent_channels", params.channels // 4)}
