"""Krea 2 with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import ADAFACTOR, CHECKPOINTING, COMPILED, FUSED, GRAPHS, options_of
from benchmarks.full_size.common.weights import quieter, unknown, write_components
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.krea2.card import CARD, ENCODERS
from sd_scripts.families.krea2.card.memory_facts import CAPTION
from sd_scripts.families.krea2.full_size import modules as modules
from sd_scripts.families.krea2.load import TEXT_ENCODER
from sd_scripts.library.files.state_dicts import State

OPTIONS = options_of({"timestep_sampling": "krea2_shift"})
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
    quiet = quieter("tproj", "mlp.down.weight")

    def change(name: str, weights: State) -> State:
        weights = quiet(name, weights)
        if name == DENOISER:
            for key in weights:
                weights[key] -= 1.0 if key.endswith(".scale") else 0.0
        if name == VAE:
            weights |= {key: torch.ones_like(tensor) for key, tensor in weights.items() if key.endswith("gamma")}
        if name == TEXT_ENCODER:
            weights = {f"model.{key}": tensor for key, tensor in weights.items()}
            weights[ENCODERS[0]] = torch.zeros(1)  # of the vision tower, by which such files are recognised
        return weights

    return write_components(CARD, modules(), folder, change)
