"""Wan 2.2 TI2V 5B at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.wan import full_size
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan

PARAMS = WanParams(width=3072, mlp_width=14_336, heads=24, blocks=30, in_channels=48, channels=48)


def modules(layers: int = full_size.UMT5["num_layers"]) -> dict[str, nn.Module]:
    """Return the components on the meta device, with this many layers of the text encoder."""
    with torch.device("meta"):
        vae = AutoencoderKLWan(
            **{"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "patch_size": 2},
            **{"in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16},
            **{"latents_mean": [0.0] * 48, "latents_std": [1.0] * 48},
        )
        return {**full_size.modules(layers), DENOISER: WanTransformer(PARAMS), VAE: vae}
