"""HunyuanVideo's VAE in miniature: its sizes, and latents with mean 0 and deviation 1."""

from typing import Any

from torch import Tensor

from sd_scripts.testing.miniature import images, set_moments

AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (16, 16, 32, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}


def calibrate_clips(vae: Any) -> Tensor:
    """Give the latents of the drawn images mean 0, deviation 1 and a narrow distribution; return them, scaled,
    (12, 16, h, w)."""
    pixels = images()[:, :, None]
    moments = vae.encode(pixels).latent_dist.parameters  # (12, 32, 1, h, w)
    gain = 1 / (vae.config.scaling_factor * moments.std((0, 2, 3, 4)))
    latents = set_moments(vae.quant_conv, moments, gain, 0.0).squeeze(2)
    return latents * float(vae.config.scaling_factor)
