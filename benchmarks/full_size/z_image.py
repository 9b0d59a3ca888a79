"""Z-Image with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.full_size.common.rows import CHECKPOINTING, COMPILED, FUSED, GRAPHS, UNRECORDED
from benchmarks.full_size.common.weights import random_weights, unknown
from sd_scripts.families.z_image.card import CARD
from sd_scripts.families.z_image.card.memory_facts import CAPTION
from sd_scripts.families.z_image.full_size import modules as modules
from sd_scripts.library.files.safetensors_io import save_model

OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {"network_dim": 16, "network_alpha": 8.0, "network_train_unet_only": True, "learning_rate": 1e-4},
    "full": {"full_bf16": True, "learning_rate": 1e-5},
}
"""Options of all rows, by training method."""
SMALL = COMPILED | CHECKPOINTING
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "graphs": GRAPHS,
        "compiled_unrecorded": COMPILED | UNRECORDED,
        "compiled_checkpointing": SMALL,
        "fp8_compute": COMPILED | {"fp8_compute": True},
        "fp8_base": SMALL | {"fp8_base": True},
        "swap20_fp8": SMALL | {"blocks_to_swap": 20, "fp8_base": True},
    },
    "full": {"compiled_checkpointing": SMALL, "fused": FUSED},
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels, with a usual caption."""
    grid = height // 16, width // 16
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 64), unknown(1, CAPTION, 2560), unknown(1), grid)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 20 GB in bf16; return them by the options that name them."""
    files = {}
    for component in CARD.files.components:
        weights = random_weights(modules()[component.name])
        files[component.option] = folder / f"{component.option}.safetensors"
        save_model(files[component.option], weights, {})
    return files
