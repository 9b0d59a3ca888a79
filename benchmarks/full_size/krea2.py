"""Krea 2 with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import ADAFACTOR, CHECKPOINTING, COMPILED, FUSED, GRAPHS
from benchmarks.full_size.common.weights import random_weights, unknown
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.krea2.card import CARD, ENCODERS
from sd_scripts.families.krea2.card.memory_facts import CAPTION
from sd_scripts.families.krea2.full_size import modules as modules
from sd_scripts.families.krea2.load import TEXT_ENCODER
from sd_scripts.library.files.safetensors_io import save_model

QUIET = 0.3
"""Scale of the weights of the modulation and of the last layers of MLPs, without which the activations of random blocks
grow from block to block."""
OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {
        "network_dim": 16,
        "network_alpha": 8.0,
        "network_train_unet_only": True,
        "learning_rate": 1e-4,
        "timestep_sampling": "krea2_shift",
    },
    "full": {"full_bf16": True, "learning_rate": 1e-5, "timestep_sampling": "krea2_shift"},
}
"""Options of all rows, by training method."""
SMALL = COMPILED | CHECKPOINTING
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "graphs": GRAPHS,
        "compiled_checkpointing": SMALL,
        "fp8_compute": COMPILED | {"fp8_compute": True},
        "fp8_base": SMALL | {"fp8_base": True},
        "swap8_fp8": SMALL | {"blocks_to_swap": 8, "fp8_base": True},
        "swap26_fp8": SMALL | {"blocks_to_swap": 26, "fp8_base": True},
    },
    "full": {"fused": FUSED, "adafactor": ADAFACTOR, "adafactor_swap10": ADAFACTOR | {"blocks_to_swap": 10}},
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels, with a usual caption."""
    grid = height // 16, width // 16
    text = unknown(1, CAPTION, 12, 2560)
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 64), text, unknown(1), grid)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 34 GB in bf16; return them by the options that name them."""
    files = {}
    for component in CARD.files.components:
        weights = random_weights(modules()[component.name])
        if component.name == DENOISER:
            for name in weights:
                weights[name] *= QUIET if name.startswith("tproj") or name.endswith("mlp.down.weight") else 1.0
                weights[name] -= 1.0 if name.endswith(".scale") else 0.0
        if component.name == VAE:
            weights |= {key: torch.ones_like(tensor) for key, tensor in weights.items() if key.endswith("gamma")}
        if component.name == TEXT_ENCODER:
            weights = {f"model.{key}": tensor for key, tensor in weights.items()}
            weights[ENCODERS[0]] = torch.zeros(1)  # of the vision tower, by which such files are recognised
        files[component.option] = folder / f"{component.option}.safetensors"
        save_model(files[component.option], weights, {})
    return files
