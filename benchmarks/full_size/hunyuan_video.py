"""HunyuanVideo with random weights, and the runs that the benchmark times with it."""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import options_of, video_rows
from benchmarks.full_size.common.vocabulary import save_tokenizer
from benchmarks.full_size.common.weights import random_weights, unknown
from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.common.encoders.llama import LLM_NAME, SKIPPED_LAYERS
from sd_scripts.families.common.encoders.tiny_llama import llama_tokenizer
from sd_scripts.families.common.full_size import LLAMA_LAYERS
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.card.options import RECOMMENDED
from sd_scripts.families.hunyuan_video.full_size import modules
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.library.text.tokenizers import LLAMA

QUIET = 0.3
"""Scale of the modulations' weights, without which the activations of random blocks grow from block to block."""

OPTIONS = options_of(RECOMMENDED)
"""Options of all rows, by training method."""
ROWS = video_rows(34)
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int, frames: int = 1) -> Tensor:
    """Call the transformer on the meta device for one image or clip of this size in pixels."""
    latents = unknown(1, 16, 1 + frames // 4, height // 8, width // 8)
    predicted: Tensor = denoiser(latents, unknown(1, LLAMA_TOKENS, 4096), unknown(1, 768), unknown(1), unknown(1))
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 41 GB in bf16; return them by the options that name them. LLaMA's last layers, which are
    not read, are there by name only."""
    made, files = modules(), {}
    for component in CARD.files.components:
        weights = random_weights(made[component.name])
        if component.name == DENOISER:
            for key in weights:
                weights[key] *= QUIET if "mod" in key or key.startswith("final_layer.ada") else 1.0
        if component.name == LLM_NAME:
            unread = range(LLAMA_LAYERS - SKIPPED_LAYERS, LLAMA_LAYERS)
            weights |= {f"layers.{number}.mlp.gate_proj.weight": torch.zeros(1, 1) for number in unread}
        files[component.option] = folder / f"{component.option}.safetensors"
        save_model(files[component.option], {component.prefixes[0] + key: each for key, each in weights.items()}, {})
    tokenizers = files["pretrained_model_name_or_path"].stem + "_tokenizers"
    save_tokenizer(llama_tokenizer(), folder / tokenizers / "tokenizer", LLAMA.size)
    return files
