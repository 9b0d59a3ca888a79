"""FLUX.1's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping

from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.common.encoders.outlines import T5EncoderOutline
from sd_scripts.families.common.encoders.t5 import finish_t5, t5_config, t5_encoder
from sd_scripts.families.common.layouts import Layout, autoencoder, clip_l, make_text_encoder
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected
from sd_scripts.families.flux import keys
from sd_scripts.families.flux.card import T5_LENGTHS
from sd_scripts.families.flux.card.options import RECOMMENDED, FluxModelOptions
from sd_scripts.families.flux.model import FluxParams, FluxTransformer, Modulation
from sd_scripts.library.text.tokenizers import CLIP, T5
from sd_scripts.options.optimization.flow import FlowOptions

TEXT_ENCODER, T5XXL = "text_encoder1", "text_encoder2"
BLOCK_LISTS = BlockLists(
    names={"double_blocks": "double", "single_blocks": "single"}, counts=swap_counts, few_tokens=Modulation
)
T5_LINEAR = re.compile(r"encoder\.block\.(?!.*relative_attention_bias).*\.weight")
"""Names of T5's weights that can be quantized: its relative bias is a lookup table, not a matrix product."""


LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: FluxTransformer(FluxParams.of(shapes)),
        unify=keys.from_diffusers,
        quantizable=BLOCK_LISTS.weights,
    ),
    TEXT_ENCODER: clip_l(tokenizer=CLIP),
    T5XXL: Layout(
        make=lambda shapes: make_text_encoder("T5EncoderModel", "T5Config", t5_config(shapes)),
        outline=lambda shapes: T5EncoderOutline(**t5_config(shapes)),
        unify=t5_encoder,
        finish=finish_t5,
        tokenizer=T5,
        quantizable=T5_LINEAR,
    ),
    VAE: autoencoder(flux_vae.CONFIG),
}


def prepare(components: Components, flux: FluxModelOptions) -> None:
    guided = _params(components.sources).guidance
    variant = "dev" if guided else "schnell"
    components.extras = {
        "variant": variant,
        "guidance": guided,
        "t5_length": flux.t5xxl_max_token_length or T5_LENGTHS[variant],
        "apply_t5_attn_mask": flux.apply_t5_attn_mask,
    }


def _params(sources: Mapping[str, WeightSource]) -> FluxParams:
    return sources[DENOISER].empty.shape  # type: ignore[return-value]


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params = _params(sources)
    return {
        TEXT_ENCODER: ("hidden_size", params.pooled_width),
        T5XXL: ("d_model", params.text_width),
        VAE: ("latent_channels", params.channels // 4),
    }


def problems(sources: Mapping[str, WeightSource], flow: FlowOptions) -> list[str]:
    """Return a problem if schnell, which has no guidance, is given one."""
    default, guidance = FlowOptions.guidance_scale, flow.guidance_scale
    of_dev = RECOMMENDED["guidance_scale"]  # settings for dev may be used for schnell
    if _params(sources).guidance or guidance in (default, of_dev):
        return []
    return [
        f"guidance_scale: FLUX.1 schnell ignores guidance, so {guidance:g} has no meaning; leave it at its default "
        f"{default}"
    ]
