"""Wan 2.1 T2V 14B with random weights, and the runs that the benchmark times with it."""

from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import options_of, video_rows
from benchmarks.full_size.common.vocabulary import save_tokenizer
from benchmarks.full_size.common.weights import random_weights, unknown
from sd_scripts.families.cards.shared_components import UMT5_TOKENS
from sd_scripts.families.common.components import VAE
from sd_scripts.families.common.encoders.umt5 import TOKENS
from sd_scripts.families.wan.card.options import RECOMMENDED
from sd_scripts.families.wan.full_size import UMT5, modules
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.testing.miniature import t5_tokenizer

LAYERS: int = UMT5["num_layers"]
SHORT_ENCODER = {"layers": 2}
"""Arguments of write_files for a text encoder that is written quickly."""
OPTIONS = options_of(RECOMMENDED)
"""Options of all rows, by training method."""
ROWS = video_rows(36)
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int, frames: int = 1) -> Tensor:
    """Call the transformer on the meta device for one image or clip of this size in pixels."""
    latents = unknown(1, 16, 1 + frames // 4, height // 8, width // 8)
    predicted: Tensor = denoiser(latents, unknown(1, UMT5_TOKENS, UMT5["d_model"]), unknown(1))
    return predicted


def write_files(folder: Path, layers: int = LAYERS) -> dict[str, Path]:
    """Write the model's files, 40 GB in bf16 with all `layers` of the text encoder; return them by the options that
    name them."""
    return write_parts(folder, "wan", modules(layers))


def write_parts(folder: Path, stem: str, parts: dict[str, nn.Module]) -> dict[str, Path]:
    """Write transformer, text encoder and VAE, and a tokenizer in place of UMT5's, which is not in the package."""
    files = {
        "pretrained_model_name_or_path": folder / f"{stem}.safetensors",
        "t5": folder / "umt5.safetensors",
        "vae": folder / "vae.safetensors",
    }
    for (name, module), file in zip(parts.items(), files.values(), strict=True):
        weights = random_weights(module)
        weights.pop("encoder.embed_tokens.weight", None)  # the same tensor as shared.weight
        if name == VAE:
            weights |= {key: torch.ones_like(tensor) for key, tensor in weights.items() if key.endswith("gamma")}
        save_model(file, weights, {})
    save_tokenizer(t5_tokenizer(), folder / f"{stem}_tokenizers" / "tokenizer", TOKENS)
    return files
