"""Anima with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import CHECKPOINTING, COMPILED, FUSED, GRAPHS, UNRECORDED
from benchmarks.full_size.common.weights import random_weights, unknown
from sd_scripts.families.anima.adapter import AdapterParams
from sd_scripts.families.anima.card import CARD
from sd_scripts.families.anima.card.options import LONGEST
from sd_scripts.families.anima.full_size import modules as modules
from sd_scripts.families.anima.text import IDS, IDS_MASK, MASK, STATES
from sd_scripts.families.common.components import DENOISER
from sd_scripts.library.files.safetensors_io import save_model

QUIET = 0.3
"""Scale of the modulations' weights, without which the activations of random blocks grow from block to block."""
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
        "swap26_fp8": SMALL | {"blocks_to_swap": 26, "fp8_base": True},
    },
    "full": {"compiled_checkpointing": SMALL, "fused": FUSED},
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer and its adapter on the meta device for one image of this size in pixels."""
    there = unknown(1, LONGEST).bool()
    ids = torch.empty(1, LONGEST, dtype=torch.int64, device="meta")
    text = {STATES: unknown(1, LONGEST, AdapterParams().states_width), MASK: there, IDS: ids, IDS_MASK: there}
    predicted: Tensor = denoiser(unknown(1, 16, height // 8, width // 8), unknown(1), text)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 6 GB in bf16; return them by the options that name them."""
    files = {}
    for component in CARD.files.components:
        if component.optional:
            continue
        weights = random_weights(modules()[component.name])
        if component.name == DENOISER:
            for name in weights:
                weights[name] *= QUIET if "modulation" in name else 1.0
        files[component.option] = folder / f"{component.option}.safetensors"
        save_model(files[component.option], weights, {})
    return files
