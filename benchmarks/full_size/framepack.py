"""FramePack with random weights, and the runs that the benchmark times with it: HunyuanVideo's."""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.full_size import hunyuan_video
from benchmarks.full_size.common.weights import random_weights, unknown
from benchmarks.full_size.hunyuan_video import OPTIONS as OPTIONS
from benchmarks.full_size.hunyuan_video import QUIET
from benchmarks.full_size.hunyuan_video import ROWS as ROWS
from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.framepack.card.memory_facts import IMAGE
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.full_size import SIGLIP, modules
from sd_scripts.families.framepack.load import IMAGE_ENCODER
from sd_scripts.families.framepack.sections import count_sections, section_of, single_frame
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings

META = torch.device("meta")


def predict(denoiser: nn.Module, width: int, height: int, frames: int = 1) -> Tensor:
    """Call the transformer on the meta device for an image, or a section of a clip, and the frames that it sees."""
    clip = unknown(1, 16, 1 + frames // 4, height // 8, width // 8)
    sections = count_sections(clip.shape[2])
    options = Settings(script_for("framepack", "lora"), {})[FramePackOptions]
    section = section_of(0, sections, META, f1=False) if sections else single_frame(options, META)
    latents, known = section.split(clip)
    text, pooled = unknown(1, LLAMA_TOKENS, 4096), unknown(1, 768)
    image = unknown(1, IMAGE, SIGLIP["hidden_size"])
    predicted: Tensor = denoiser(latents, section.places, known, text, pooled, image, unknown(1), unknown(1))
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 42 GB in bf16; return them by the options that name them."""
    files = hunyuan_video.write_files(folder)
    made = modules()
    weights = random_weights(made[DENOISER])
    for key in weights:
        weights[key] *= QUIET if ".norm1" in key or ".norm.linear" in key or key.startswith("norm_out") else 1.0
    save_model(files["pretrained_model_name_or_path"], weights, {})
    files["image_encoder"] = folder / "image_encoder.safetensors"
    save_model(files["image_encoder"], random_weights(made[IMAGE_ENCODER]), {})
    return files
