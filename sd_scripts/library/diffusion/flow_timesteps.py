"""Timesteps of flow matching, called sigmas: from the image at sigma = 0 to pure noise at sigma = 1.

Timesteps here are these sigmas, float32; options in thousandths, such as min_timestep, are 1000 * sigma.
"""

import math

import torch
from torch import Tensor

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.library.diffusion.noise import TIMESTEPS, normal
from sd_scripts.options.optimization.flow import FlowOptions

MIN_SIGMA = 1e-4
"""Smallest sigma that weights divide by the square of, or one image with hardly any noise would outweigh all others."""


def draw_sigmas(count: int, options: FlowOptions, tokens: int, generator: torch.Generator) -> Tensor:
    """Draw sigmas (B,) for images of this many tokens, by timestep_sampling and weighting_scheme."""
    how = options.timestep_sampling
    if how == "sigma":
        steps = (TIMESTEPS * _draw_density(count, options, generator)).floor().clamp(0, TIMESTEPS - 1)
        return shifted((TIMESTEPS - steps) / TIMESTEPS, options.discrete_flow_shift)
    if how == "uniform":
        return torch.rand(count, generator=generator, device=generator.device)
    sigmas = torch.sigmoid(options.sigmoid_scale * normal((count,), generator))
    if how == "sigmoid":
        return sigmas
    return shifted(sigmas, options.discrete_flow_shift if how == "shift" else shift_of(tokens))


def shifted(sigmas: Tensor, shift: float) -> Tensor:
    """Return the sigmas shifted: more noise for a shift above 1; 0 and 1 are kept."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def sampling_sigmas(steps: int, shift: float) -> Tensor:
    """Return a sampler's sigmas from 1 to 0, (steps + 1,), on the CPU: where each step begins and the last ends."""
    return shifted(torch.linspace(1, 0, steps + 1), shift)


def within_bounds(sigmas: Tensor, low: int, high: int) -> Tensor:
    """Return the sigmas scaled linearly into min_timestep to max_timestep (thousandths)."""
    return low / TIMESTEPS + (high - low) / TIMESTEPS * sigmas


def loss_weights(sigmas: Tensor, weighting_scheme: str) -> Tensor:
    """Return the loss weight (B,) of each sigma (B,)."""
    if weighting_scheme == "sigma_sqrt":
        return sigmas.clamp(min=MIN_SIGMA) ** -2
    if weighting_scheme == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigmas + 2 * sigmas**2))
    return torch.ones_like(sigmas)


def _draw_density(count: int, options: FlowOptions, generator: torch.Generator) -> Tensor:
    """Draw (B,) in 0..1, where 0 is the noisiest (Esser et al. 2024, section 3.1)."""
    if options.weighting_scheme == "logit_normal":
        return torch.sigmoid(options.logit_mean + options.logit_std * normal((count,), generator))
    u = torch.rand(count, generator=generator, device=generator.device)
    if options.weighting_scheme == "mode":
        return 1 - u - options.mode_scale * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
    return u
