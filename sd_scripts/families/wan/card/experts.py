"""Wan 2.2 A14B's two models: which noise levels each is for, and which of them a run trains."""

from sd_scripts.families.wan.card.options import WanModelOptions, WanSamplingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.options.spec import OptionValues

BOUNDARY, BOUNDARY_OF_IMAGES = 0.875, 0.9
TIMESTEPS = 1000


def boundary_of(options: WanSamplingOptions, *, reads_images: bool) -> float:
    """Return from which noise level on, of 1, the model for high noise is used."""
    chosen = options.timestep_boundary
    if chosen is None:
        return BOUNDARY_OF_IMAGES if reads_images else BOUNDARY
    return chosen if chosen <= 1 else chosen / TIMESTEPS


def trained_experts(values: OptionValues, boundary: float) -> tuple[bool, bool]:
    """Return whether a run with `dit_high_noise` trains the model for low noise, and the one for high noise: a LoRA is
    trained on both unless min_timestep and max_timestep are on one side of the boundary."""
    noise = values[NoiseOptions]
    low = (noise.min_timestep or 0) / TIMESTEPS < boundary
    high = (noise.max_timestep or TIMESTEPS) / TIMESTEPS > boundary
    return low, high and (not low or values.get(NetworkOptions) is not None)


def trains_both(values: OptionValues) -> bool:
    """Return whether a run trains a LoRA on both models, as far as the options show."""
    model = values[WanModelOptions]
    boundary = boundary_of(values[WanSamplingOptions], reads_images=bool(model.task and "i2v" in model.task))
    return bool(model.dit_high_noise) and all(trained_experts(values, boundary))
