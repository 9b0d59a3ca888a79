"""The causal VAE in miniature: its sizes, and latents with the mean and deviation of Qwen-Image's."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.testing.miniature import images, set_moments

AUTOENCODER: dict[str, Any] = {
    "base_dim": 16,
    "dim_mult": [1, 1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}


def calibrate(vae: Any) -> Tensor:
    """Give the latents of the drawn images the mean and deviation of Qwen-Image's, and a narrow distribution; return
    them normalised, (12, 16, h, w)."""
    mean = torch.tensor(vae.config.latents_mean)
    std = torch.tensor(vae.config.latents_std)
    pixels = images()[:, :, None]
    moments = vae.encode(pixels).latent_dist.parameters  # (12, 32, 1, h, w)
    gain = 1 / moments.std((0, 2, 3, 4))
    gain[: len(std)] *= std
    latents = set_moments(vae.quant_conv, moments, gain, mean).squeeze(2)
    return (latents - mean[:, None, None]) / std[:, None, None]
