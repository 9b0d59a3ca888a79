"""Chroma's components: how each is created from its files and stored in memory, and which do not fit together."""

from collections.abc import Mapping
from dataclasses import replace

from sd_scripts.families.chroma.card import T5_LENGTH
from sd_scripts.families.chroma.keys import original_layout
from sd_scripts.families.chroma.model import ChromaParams, ChromaTransformer
from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.problems import Expected
from sd_scripts.families.flux import load as flux
from sd_scripts.families.flux.card.options import FluxModelOptions

T5XXL = "text_encoder1"
LAYOUTS = {
    DENOISER: replace(
        flux.LAYOUTS[DENOISER],
        make=lambda shapes: ChromaTransformer(ChromaParams.of(shapes)),
        unify=original_layout,
    ),
    T5XXL: flux.LAYOUTS[flux.T5XXL],
    VAE: flux.LAYOUTS[VAE],
}


def prepare(components: Components, model: FluxModelOptions) -> None:
    components.extras = {"t5_length": model.t5xxl_max_token_length or T5_LENGTH}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: ChromaParams = sources[DENOISER].empty.shape  # type: ignore[assignment]
    return {T5XXL: ("d_model", params.text_width), VAE: ("latent_channels", params.channels // 4)}
