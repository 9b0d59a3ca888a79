"""The noise schedule of Stable Diffusion: how much noise each of the 1,000 timesteps holds, as tables on the device."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

TIMESTEPS = 1000
FIRST_BETA, LAST_BETA = 0.00085, 0.012


def expand_to(values: Tensor, latents: Tensor) -> Tensor:
    """Return one value per sample (B,) with trailing dimensions of 1, to be multiplied with latents (B, C, *S)."""
    return values.view(-1, *[1] * (latents.dim() - 1))


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """Tables by timestep, float32, (1000,). `noisy = sqrt(ᾱ)·latents + sqrt(1 - ᾱ)·noise`."""

    alphas_cumprod: Tensor
    """ᾱ, the share of the image's variance that is left."""
    sigmas: Tensor
    """sqrt((1 - ᾱ)/ᾱ); infinite at the last timestep of a schedule with zero terminal SNR."""
    snr: Tensor
    """Signal to noise ratio, for loss weights. Always of the schedule before a zero terminal SNR is asked for: so do
    the scripts that people compare with, and it keeps every weight finite."""

    def add_noise(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Latents and noise (B, C, *S), timesteps (B,) int64 -> noisy latents, in the latents' dtype."""
        signal, spread = self._amounts(timesteps, latents)
        return (signal * latents + spread * noise).to(latents.dtype)

    def velocity(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """The target of v-prediction (Salimans and Ho 2022): sqrt(ᾱ)·noise - sqrt(1 - ᾱ)·latents."""
        signal, spread = self._amounts(timesteps, latents)
        return (signal * noise - spread * latents).to(latents.dtype)

    def _amounts(self, timesteps: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        kept = expand_to(self.alphas_cumprod[timesteps], latents)
        return kept.sqrt(), (1 - kept).sqrt()


@lru_cache
def noise_schedule(device: torch.device, zero_terminal_snr: bool = False) -> NoiseSchedule:
    """DDPM with scaled linear betas. Made once for a device: call it before a step is captured."""
    betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, TIMESTEPS) ** 2
    plain = torch.cumprod(1 - betas, dim=0)
    used = with_zero_terminal_snr(plain) if zero_terminal_snr else plain
    return NoiseSchedule(
        alphas_cumprod=used.to(device),
        sigmas=((1 - used) / used).sqrt().to(device),
        snr=(plain / (1 - plain)).to(device),
    )


def with_zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """The schedule shifted and scaled so that the last timestep is pure noise (Lin et al. 2023, algorithm 1)."""
    root = alphas_cumprod.sqrt()
    first, last = root[0], root[-1]
    return ((root - last) * first / (first - last)) ** 2
