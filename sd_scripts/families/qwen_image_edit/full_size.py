"""Qwen-Image-Edit at full size, without weights."""

import torch
from torch import nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLVisionConfig

from sd_scripts.families.qwen_image import full_size as base
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image_edit.load import VisionLanguageModel

VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "out_hidden_size": 3584}
"""Sizes of the vision tower of Qwen2.5-VL-7B."""


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device, of the text encoder the language model and the vision tower."""
    components = base.modules()
    language = components[TEXT_ENCODER].config
    assert isinstance(language, Qwen2_5_VLTextConfig)
    with torch.device("meta"):
        return {**components, TEXT_ENCODER: VisionLanguageModel(language, Qwen2_5_VLVisionConfig(**VISION))}
