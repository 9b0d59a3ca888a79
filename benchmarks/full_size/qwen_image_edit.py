"""Qwen-Image-Edit with random weights, and the runs that the benchmark times with it: Qwen-Image's."""

from pathlib import Path

from benchmarks.full_size import qwen_image as base
from benchmarks.full_size.common.weights import random_weights
from benchmarks.full_size.qwen_image import OPTIONS as OPTIONS
from benchmarks.full_size.qwen_image import ROWS as ROWS
from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image_edit.full_size import modules
from sd_scripts.families.qwen_image_edit.load import VISUAL
from sd_scripts.library.files.safetensors_io import save_model


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 57 GB in bf16; return them by the options that name them. Each image of the benchmark is
    its own control image."""
    files = base.write_files(folder)
    weights = random_weights(modules()[TEXT_ENCODER])
    named = {key if key.startswith(VISUAL) else f"model.{key}": tensor for key, tensor in weights.items()}
    save_model(files["text_encoder"], named, {})
    return {**files, "control_directory": folder / "images"}
