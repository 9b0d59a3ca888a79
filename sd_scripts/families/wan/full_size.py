"""Wan 2.1 T2V 14B at full size, without weights."""

import torch
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.full_size import T5_XXL
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan

UMT5 = T5_XXL | {"vocab_size": 256_384}


def modules(layers: int = UMT5["num_layers"]) -> dict[str, nn.Module]:
    """Return the components on the meta device, with this many layers of the text encoder."""
    with torch.device("meta"):
        return {
            DENOISER: WanTransformer(WanParams()),
            "text_encoder1": UMT5EncoderModel(UMT5Config(**UMT5 | {"num_layers": layers})),
            VAE: AutoencoderKLWan(),
        }
