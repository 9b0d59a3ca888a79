"""Chroma at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.chroma.load import T5XXL
from sd_scripts.families.chroma.model import ChromaParams, ChromaTransformer
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.flux import full_size as flux


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    others = flux.modules()
    with torch.device("meta"):
        transformer = ChromaTransformer(ChromaParams())
    return {DENOISER: transformer, T5XXL: others["text_encoder2"], VAE: others[VAE]}
