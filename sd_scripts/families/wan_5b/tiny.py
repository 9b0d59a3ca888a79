"""Wan 2.2 5B in miniature: Wan's files, with a VAE that makes one latent of 16 pixels along a side."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sd_scripts.families.common.encoders.tiny_causal_vae import AUTOENCODER
from sd_scripts.families.wan import tiny
from sd_scripts.families.wan_5b.vae import LATENTS_MEAN, LATENTS_STD
from sd_scripts.testing.miniature import Miniature

PARAMS = replace(tiny.PARAMS, in_channels=48, channels=48, blocks=3)
PATCHED: dict[str, Any] = {
    **AUTOENCODER,
    **{"decoder_base_dim": 16, "z_dim": 48, "is_residual": True, "patch_size": 2},
    **{"in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16},
    **{"latents_mean": [*LATENTS_MEAN], "latents_std": [*LATENTS_STD]},
}


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a Wan 2.2 5B, the tokenizer next to them, and captioned images."""
    return replace(tiny.write_miniature(folder, PARAMS, PATCHED), family="wan_5b")
