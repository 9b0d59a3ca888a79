"""Wan 2.2 A14B: two models, one for high and one for low noise. A LoRA is trained on both, or on one of them; samples
use both."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from sd_scripts.families.common.components import DENOISER, Components
from sd_scripts.families.common.experts import HIGH, LOW, TRAINED, Experts, UntrainedExpert
from sd_scripts.families.common.flow_sampling import Velocity
from sd_scripts.families.common.placing import Placement
from sd_scripts.families.wan import load
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.card.experts import boundary_of, trained_experts
from sd_scripts.families.wan.card.options import WanModelOptions, WanSamplingOptions
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.settings.settings import Settings

TRAINS_HIGH = "trains_high_noise"
"""Among the extras of components: whether the denoiser is the model for high noise, and the other one is for low."""


def prepare(components: Components, settings: Settings) -> None:
    """Let both models change places in the denoiser if both are trained; else the denoiser is the trained one."""
    load.prepare(components, settings[WanModelOptions])
    if HIGH_NOISE not in components.sources:
        return
    boundary = boundary_for(components, settings[WanSamplingOptions])
    sources = components.sources
    low, high = trained_experts(settings, boundary)
    sources[HIGH_NOISE] = replace(sources[HIGH_NOISE], device="cpu")
    if low and high:
        components.experts = Experts(component=HIGH_NOISE, option="dit_high_noise", boundary=boundary)
    elif high:
        one, other = sources[DENOISER], sources[HIGH_NOISE]
        sources[DENOISER] = replace(one, empty=other.empty, make=other.make, path=other.path, read=other.read)
        sources[HIGH_NOISE] = replace(other, empty=one.empty, make=one.make, path=one.path, read=one.read)
        components.denoiser, components.others[HIGH_NOISE] = other.empty, one.empty
        components.extras[TRAINS_HIGH] = True


def expert_metadata(components: Components) -> dict[str, str]:
    """Return the entry about the models that a LoRA is trained on, where there are two."""
    if HIGH_NOISE not in components.sources:
        return {}
    one = HIGH if components.extras.get(TRAINS_HIGH) else LOW
    return {TRAINED: f"{LOW},{HIGH}" if components.experts else one}


def boundary_for(components: Components, options: WanSamplingOptions) -> float:
    params = cast(WanTransformer, components.denoiser).params
    return boundary_of(options, reads_images=params.in_channels > params.channels)


def velocity_of(
    components: Components,
    options: WanSamplingOptions,
    placement: Placement,
    make: Callable[[WanTransformer, bool], Velocity],
) -> Velocity:
    """Return the function that predicts the velocity of samples, with both models if there are two. `make` returns the
    velocity of a model, and whether it is the one for high noise."""
    denoiser = cast(WanTransformer, components.denoiser)
    if components.experts:
        return components.experts.choosing(low=make(denoiser, False), high=make(denoiser, True))
    if HIGH_NOISE not in components.sources:
        return make(denoiser, False)
    return UntrainedExpert(
        components,
        component=HIGH_NOISE,
        boundary=boundary_for(components, options),
        trains_high=bool(components.extras.get(TRAINS_HIGH)),
        make=make,
        place=lambda model, device: load.BLOCK_LISTS.place_model(model, placement, device),
    )
