"""What is drawn by chance for a step: noise and timesteps, all from the one generator of the step.

Everything is made where the generator lives, without waiting for the device.
"""

import random

import torch
from torch import Tensor
from torch.nn import functional

from sd_scripts.library.schedules import TIMESTEPS, expand_to
from sd_scripts.options.loss import NoiseOptions


def draw_timesteps(count: int, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """(B,) int64, uniform from min_timestep up to but without max_timestep; equal bounds give that timestep."""
    low, high = timestep_bounds(options)
    return torch.randint(low, max(high, low + 1), (count,), generator=generator, device=generator.device)


def timestep_bounds(options: NoiseOptions) -> tuple[int, int]:
    """min_timestep and max_timestep, the whole range where they are not set."""
    low = options.min_timestep or 0
    high = TIMESTEPS if options.max_timestep is None else options.max_timestep
    if not (0 <= low <= high <= TIMESTEPS and low < TIMESTEPS):
        raise ValueError(
            f"min_timestep, max_timestep: {low} to {high} is not a range within 0 to {TIMESTEPS}; "
            "leave both unset for all timesteps"
        )
    return low, high


def draw_noise(latents: Tensor, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """Noise of the latents' shape (B, C, *S), float32: what is mixed in and what the model shall predict.

    Offsets are the same for all frames of a clip; pyramids are coarser within each frame.
    """
    noise = normal(latents.shape, generator)
    if options.noise_offset:
        strength = _offset_strength(latents, options.noise_offset, options, generator)
        noise = noise + strength * normal((*latents.shape[:2], *[1] * (latents.dim() - 2)), generator)
    if options.multires_noise_iterations:
        noise = _add_pyramid(noise, options.multires_noise_iterations, options.multires_noise_discount, generator)
    return noise


def perturb(noise: Tensor, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """The noise to mix in, which ip_noise_gamma makes a little other than the noise to predict (Ning et al. 2023)."""
    if not options.ip_noise_gamma:
        return noise
    strength = _strength(options.ip_noise_gamma, options.ip_noise_gamma_random_strength, noise, generator)
    return noise + strength * normal(noise.shape, generator)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Plain noise, float32, where the generator lives."""
    return torch.randn(shape, generator=generator, device=generator.device)


def _strength(limit: float, drawn: bool, latents: Tensor, generator: torch.Generator) -> float | Tensor:
    """The limit itself, or for each sample a number drawn uniformly below it (B, 1, ...)."""
    if not drawn:
        return limit
    return limit * expand_to(torch.rand(len(latents), generator=generator, device=generator.device), latents)


def _offset_strength(
    latents: Tensor, offset: float, options: NoiseOptions, generator: torch.Generator
) -> float | Tensor:
    strength = _strength(offset, options.noise_offset_random_strength, latents, generator)
    if not options.adaptive_noise_scale:
        return strength
    mean = latents.float().mean(dim=tuple(range(2, latents.dim())), keepdim=True).abs()  # (B, C, 1, ...)
    return (strength + options.adaptive_noise_scale * mean).clamp(min=0)


def _add_pyramid(noise: Tensor, levels: int, discount: float, generator: torch.Generator) -> Tensor:
    """Coarser and coarser noise on top (multi-resolution noise), scaled back to a standard deviation of 1."""
    height, width = noise.shape[-2:]
    # Sizes must be known to Python; the seed of the generator is, so they are drawn from it, not from the device.
    chance = random.Random(generator.initial_seed())
    for level in range(levels):
        shrink = chance.uniform(2, 4) ** level
        coarse = max(1, int(height / shrink)), max(1, int(width / shrink))
        grain = normal((*noise.shape[:-2], *coarse), generator).flatten(0, -4)  # frames as channels
        fine = functional.interpolate(grain, size=(height, width), mode="bilinear").view(noise.shape)
        noise = noise + fine * discount**level
        if 1 in coarse:
            break
    return noise / noise.std()
