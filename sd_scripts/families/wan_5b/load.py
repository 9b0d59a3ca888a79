"""Wan 2.2 5B's components: Wan's, with the VAE of Wan 2.2."""

from collections.abc import Mapping
from dataclasses import replace

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.families.wan import load as base
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.conditions import IMAGE_ENCODER
from sd_scripts.families.wan_5b.card import CHANNELS
from sd_scripts.families.wan_5b.vae import make_vae

LAYOUTS = {
    **{name: layout for name, layout in base.LAYOUTS.items() if name not in (IMAGE_ENCODER, HIGH_NOISE)},
    VAE: replace(base.LAYOUTS[VAE], make=make_vae),
}


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    if params_of(sources).channels != CHANNELS:
        why = "is not the 5B model but one for latents of 16 channels; train it with the scripts of Wan"
        raise ValueError(f"pretrained_model_name_or_path: '{sources[DENOISER].path}' {why}")
    return base.expected(sources)
