"""FramePack at full size, without weights."""

import torch
from torch import nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.framepack.load import IMAGE_ENCODER
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer
from sd_scripts.families.hunyuan_video import full_size

SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    parts = full_size.modules()
    with torch.device("meta"):
        vae = parts.pop("vae")
        siglip = SiglipVisionModel(SiglipVisionConfig(**SIGLIP))
        return {**parts, DENOISER: FramePackTransformer(FramePackParams()), IMAGE_ENCODER: siglip, "vae": vae}
