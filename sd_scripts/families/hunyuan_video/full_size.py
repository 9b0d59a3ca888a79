"""HunyuanVideo at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.full_size import llama_and_clip
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        transformer = HunyuanVideoTransformer(HunyuanParams())
        return {DENOISER: transformer, **llama_and_clip(), VAE: AutoencoderKLHunyuanVideo()}
