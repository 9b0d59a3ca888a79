"""Qwen-Image-Edit at full size with random weights, and the runs that the benchmark times with it: Qwen-Image's."""

from pathlib import Path

import torch
from torch import nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLVisionConfig

from sd_scripts.families.full_size import random_weights
from sd_scripts.families.qwen_image import full_size as base
from sd_scripts.families.qwen_image.full_size import OPTIONS as OPTIONS
from sd_scripts.families.qwen_image.full_size import ROWS as ROWS
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image_edit.load import VISUAL, VisionLanguageModel
from sd_scripts.library.safetensors_io import save_model

VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "out_hidden_size": 3584}
"""Sizes of the vision tower of Qwen2.5-VL-7B."""


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device, of the text encoder the language model and the vision tower."""
    made = base.modules()
    language = made[TEXT_ENCODER].config
    assert isinstance(language, Qwen2_5_VLTextConfig)
    with torch.device("meta"):
        return {**made, TEXT_ENCODER: VisionLanguageModel(language, Qwen2_5_VLVisionConfig(**VISION))}


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 57 GB in bf16; return them by the options that name them. Each image of the benchmark is
    its own control image."""
    files = base.write_files(folder)
    weights = random_weights(modules()[TEXT_ENCODER])
    named = {key if key.startswith(VISUAL) else f"model.{key}": tensor for key, tensor in weights.items()}
    save_model(files["text_encoder"], named, {})
    return {**files, "control_directory": folder / "images"}
