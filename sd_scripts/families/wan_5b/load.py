"""Wan 2.2 5B's components: Wan's, with the VAE of Wan 2.2."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sd_scripts.families.common.components import DENOISER, VAE, WeightSource
from sd_scripts.families.wan import load as base
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.conditions import IMAGE_ENCODER
from sd_scripts.families.wan_5b.card import CHANNELS
from sd_scripts.families.wan_5b.vae import make_vae
from sd_scripts.settings.settings import Settings

LAYOUTS = {
    **{name: layout for name, layout in base.LAYOUTS.items() if name not in (IMAGE_ENCODER, HIGH_NOISE)},
    VAE: replace(base.LAYOUTS[VAE], make=make_vae),
}


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return the problems of Wan, and one if the transformer is of a different Wan model."""
    transformer: Any = sources[DENOISER].empty
    if transformer.params.channels != CHANNELS:
        why = "is not the 5B model but one for latents of 16 channels; train it with the scripts of Wan"
        return [f"pretrained_model_name_or_path: '{sources[DENOISER].path}' {why}"]
    return base.problems(sources, settings)
