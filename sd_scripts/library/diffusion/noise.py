"""Noise and timesteps: Stable Diffusion's noise schedule, and the random draws of each step.

Tensors are made on the generator's device, without waiting for it.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from sd_scripts.options.optimization.loss import NoiseOptions

TIMESTEPS = 1000
FIRST_BETA, LAST_BETA = 0.00085, 0.012


def expand_to(values: Tensor, latents: Tensor) -> Tensor:
    """Return one value per sample (B,) with trailing dimensions of 1, to be multiplied with latents (B, C, *S)."""
    return values.view(-1, *[1] * (latents.dim() - 1))


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Tables by timestep, float32, (1000,). `noisy = sqrt(ᾱ)·latents + sqrt(1 - ᾱ)·noise`."""

    alphas_cumprod: Tensor
    """ᾱ, the share of the image's variance that remains."""
    sigmas: Tensor
    """sqrt((1 - ᾱ)/ᾱ); infinite at the last timestep of a schedule with zero terminal SNR."""
    snr: Tensor
    """Signal-to-noise ratio, for loss weights. With zero terminal SNR it still follows the plain schedule: as in
    sd-scripts, and so that every weight is finite."""

    def add_noise(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return the noisy latents, in the latents' dtype; latents and noise (B, C, *S), timesteps (B,) int64."""
        signal, spread = self._amounts(timesteps, latents)
        return (signal * latents + spread * noise).to(latents.dtype)

    def velocity(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return the target of v-prediction (Salimans and Ho 2022): sqrt(ᾱ)·noise - sqrt(1 - ᾱ)·latents."""
        signal, spread = self._amounts(timesteps, latents)
        return (signal * noise - spread * latents).to(latents.dtype)

    def _amounts(self, timesteps: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        signal = expand_to(self.alphas_cumprod[timesteps], latents)
        return signal.sqrt(), (1 - signal).sqrt()


@lru_cache
def noise_schedule(device: torch.device, zero_terminal_snr: bool = False) -> NoiseSchedule:
    """Return DDPM's schedule with scaled linear betas. Cached by device: call it before a step is captured."""
    betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, TIMESTEPS) ** 2
    plain = torch.cumprod(1 - betas, dim=0)
    used = with_zero_terminal_snr(plain) if zero_terminal_snr else plain
    return NoiseSchedule(
        alphas_cumprod=used.to(device),
        sigmas=((1 - used) / used).sqrt().to(device),
        snr=(plain / (1 - plain)).to(device),
    )


def with_zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """Return the schedule with the last timestep as pure noise (Lin et al. 2023, algorithm 1)."""
    root = alphas_cumprod.sqrt()
    first, last = root[0], root[-1]
    return ((root - last) * first / (first - last)) ** 2


def draw_timesteps(count: int, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """Draw timesteps (B,) int64, uniform in [min_timestep, max_timestep); equal bounds give that timestep."""
    low, high = timestep_bounds(options)
    return torch.randint(low, max(high, low + 1), (count,), generator=generator, device=generator.device)


def timestep_bounds(options: NoiseOptions) -> tuple[int, int]:
    """Return min_timestep and max_timestep, where unset 0 and 1000. Raises ValueError if they are not a range."""
    low = options.min_timestep or 0
    high = TIMESTEPS if options.max_timestep is None else options.max_timestep
    if not (0 <= low <= high <= TIMESTEPS and low < TIMESTEPS):
        raise ValueError(
            f"min_timestep, max_timestep: {low} to {high} is not a range within 0 to {TIMESTEPS}; "
            "leave both unset for all timesteps"
        )
    return low, high


def draw_noise(latents: Tensor, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """Draw noise of the latents' shape (B, C, *S), float32: the target of a model that predicts noise.

    noise_offset is the same for all frames of a clip; multires noise is coarser within each frame.
    """
    noise = normal(latents.shape, generator)
    if options.noise_offset:
        strength = _offset_strength(latents, options, generator)
        noise = noise + strength * normal((*latents.shape[:2], *[1] * (latents.dim() - 2)), generator)
    if options.multires_noise_iterations:
        noise = _add_pyramid(noise, options.multires_noise_iterations, options.multires_noise_discount, generator)
    return noise


def perturb(noise: Tensor, options: NoiseOptions, generator: torch.Generator) -> Tensor:
    """Return the noise to add to the latents: with ip_noise_gamma not quite the target (Ning et al. 2023)."""
    if not options.ip_noise_gamma:
        return noise
    strength = _strength(options.ip_noise_gamma, options.ip_noise_gamma_random_strength, noise, generator)
    return noise + strength * normal(noise.shape, generator)


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw Gaussian noise, float32, on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device)


def _strength(limit: float, drawn: bool, latents: Tensor, generator: torch.Generator) -> float | Tensor:
    """Return the limit, or if `drawn` a number for each sample, uniform below it (B, 1, ...)."""
    if not drawn:
        return limit
    return limit * expand_to(torch.rand(len(latents), generator=generator, device=generator.device), latents)


def _offset_strength(latents: Tensor, options: NoiseOptions, generator: torch.Generator) -> float | Tensor:
    strength = _strength(options.noise_offset or 0.0, options.noise_offset_random_strength, latents, generator)
    if not options.adaptive_noise_scale:
        return strength
    mean = latents.float().mean(dim=tuple(range(2, latents.dim())), keepdim=True).abs()  # (B, C, 1, ...)
    return (strength + options.adaptive_noise_scale * mean).clamp(min=0)


def _add_pyramid(noise: Tensor, levels: int, discount: float, generator: torch.Generator) -> Tensor:
    """Add ever coarser noise (multi-resolution noise) and scale back to a standard deviation of 1."""
    height, width = noise.shape[-2:]
    # Python needs the sizes: drawn from the generator's seed, they need no wait for the device
    sizes = random.Random(generator.initial_seed())
    for level in range(levels):
        shrink = sizes.uniform(2, 4) ** level
        coarse = max(1, int(height / shrink)), max(1, int(width / shrink))
        grain = normal((*noise.shape[:-2], *coarse), generator).flatten(0, -4)  # frames as channels
        fine = functional.interpolate(grain, size=(height, width), mode="bilinear").view(noise.shape)
        noise = noise + fine * discount**level
        if 1 in coarse:
            break
    return noise / noise.std()
