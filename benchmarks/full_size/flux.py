"""FLUX.1 dev with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.full_size.common.rows import (
    ADAFACTOR,
    ADAPTERS,
    AUTOTUNED,
    CHECKPOINTING,
    COMPILED,
    FUSED,
    GRAPHS,
    QUANTIZED,
    UNRECORDED,
)
from benchmarks.full_size.common.weights import quieter, unknown, write_components
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.card.speeds import SPEEDS
from sd_scripts.families.flux.full_size import modules

OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {
        "network_module": "networks.lora_flux",
        "network_dim": 16,
        "network_alpha": 8.0,
        "network_train_unet_only": True,
        "learning_rate": 1e-4,
        "model_prediction_type": "raw",
        "guidance_scale": 1.0,
    },
    "full": {"full_bf16": True, "learning_rate": 1e-5, "model_prediction_type": "raw", "guidance_scale": 1.0},
}
"""Options of all rows, by training method."""
SMALL = COMPILED | CHECKPOINTING
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "graphs": GRAPHS,
        "graphs_high_noise": GRAPHS | {"highnoise_resolution": "768"},
        "eager_unrecorded": UNRECORDED,
        "compiled_unrecorded": COMPILED | UNRECORDED,
        "autotuned": AUTOTUNED,
        "eager_checkpointing": CHECKPOINTING,
        "compiled_checkpointing": SMALL,
        "graphs_checkpointing": GRAPHS | CHECKPOINTING,
        "budget50": COMPILED | {"activation_memory_budget": 0.5},
        "budget0": COMPILED | {"activation_memory_budget": 0.0},
        "fp8_compute": COMPILED | {"fp8_compute": True},
        "fp8_base": SMALL | {"fp8_base": True},
        "fp8_all": SMALL | {"fp8_base": True, "fp8_compute": True},
        "compiled4_checkpointing": SMALL | {"train_batch_size": 4},
        "fp8_all4": SMALL | {"fp8_base": True, "fp8_compute": True, "train_batch_size": 4},
        "swap18": SMALL | {"blocks_to_swap": 18},
        "swap34": SMALL | {"blocks_to_swap": 34},
        "swap34_fp8": SMALL | {"blocks_to_swap": 34, "fp8_base": True},
        **ADAPTERS,
        **QUANTIZED,
    },
    "full": {
        "compiled_checkpointing": SMALL,
        "fused": FUSED,
        "fused_swap10": FUSED | {"blocks_to_swap": 10},
        "fused_swap18": FUSED | {"blocks_to_swap": 18},
        "adafactor_swap18": ADAFACTOR | {"blocks_to_swap": 18},
        "adafactor_swap35": ADAFACTOR | {"blocks_to_swap": 35},
    },
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""

MEASURED_STEPS = MeasuredSteps.of(SPEEDS, launching=0.4)
"""Launching eager steps took 0.35 s, where blocks are swapped up to 0.7 s (2026-11-25_presets)."""


def predict(denoiser: nn.Module, width: int, height: int, controls: int = 0) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels, and control images of the same."""
    grid = height // 16, width // 16
    img, txt = unknown(1, (1 + controls) * grid[0] * grid[1], 64), unknown(1, 512, 4096)
    predicted: Tensor = denoiser(img, txt, unknown(1, 768), unknown(1), unknown(1), grid, None, (grid,) * controls)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 33 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder, quieter("mod"))
