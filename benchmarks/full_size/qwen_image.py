"""Qwen-Image with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.rows import ADAFACTOR, CHECKPOINTING, COMPILED, FUSED, GRAPHS
from benchmarks.full_size.common.weights import random_weights, unknown
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.qwen_image.card import ENCODERS
from sd_scripts.families.qwen_image.card.memory_facts import CAPTION
from sd_scripts.families.qwen_image.full_size import LAYERS, modules
from sd_scripts.library.files.safetensors_io import save_model

SHORT_ENCODER = {"layers": 1}
"""Arguments of write_files for what never measures the text encoder: files of 42 GB instead of 55."""
QUIET = 0.3
"""Scale of the modulations' weights, without which the activations of random blocks grow from block to block."""

OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {
        "network_dim": 16,
        "network_alpha": 8.0,
        "network_train_unet_only": True,
        "learning_rate": 1e-4,
        "timestep_sampling": "qwen_shift",
    },
    "full": {"full_bf16": True, "learning_rate": 1e-5, "timestep_sampling": "qwen_shift"},
}
"""Options of all rows, by training method."""
SMALL = COMPILED | CHECKPOINTING
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "eager_checkpointing": CHECKPOINTING,
        "compiled_checkpointing": SMALL,
        "graphs_checkpointing": GRAPHS | CHECKPOINTING,
        "fp8_compute": SMALL | {"fp8_compute": True},
        "fp8_base": SMALL | {"fp8_base": True},
        "fp8_all": SMALL | {"fp8_base": True, "fp8_compute": True},
        "swap30": SMALL | {"blocks_to_swap": 30},
        "swap46_fp8": SMALL | {"blocks_to_swap": 46, "fp8_base": True},
    },
    "full": {
        "fused": FUSED,
        "adafactor": ADAFACTOR,
        "adafactor_swap20": ADAFACTOR | {"blocks_to_swap": 20},
        "adafactor_swap40": ADAFACTOR | {"blocks_to_swap": 40},
    },
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""

MEASURED_STEPS = MeasuredSteps(
    eager=0.446, compiled=0.355, checkpointed=0.633, compiled_checkpointed=0.515, launching=0.45
)
"""Those with gradient_checkpointing at 1328x1328, 1.229 and 1.001 s, as 154.3 of 299.7 TFLOP; the others estimated from
FLUX.1's."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels, with a usual caption."""
    grid = height // 16, width // 16
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 64), unknown(1, CAPTION, 3584), unknown(1), grid)
    return predicted


def write_files(folder: Path, layers: int = LAYERS) -> dict[str, Path]:
    """Write the model's files, 55 GB in bf16 with all `layers` of the text encoder; return them by the options that
    name them."""
    files = {
        "pretrained_model_name_or_path": folder / "qwen_image.safetensors",
        "text_encoder": folder / "text_encoder.safetensors",
        "vae": folder / "vae.safetensors",
    }
    for (name, module), file in zip(modules(layers).items(), files.values(), strict=True):
        weights = random_weights(module)
        if name == DENOISER:
            for key in weights:
                weights[key] *= QUIET if "_mod." in key or key.startswith("norm_out") else 1.0
        if name == VAE:
            weights |= {key: torch.ones_like(tensor) for key, tensor in weights.items() if key.endswith("gamma")}
        if name == "text_encoder1":
            weights = {f"model.{key}": tensor for key, tensor in weights.items()}
            weights[ENCODERS[0]] = torch.zeros(1)  # of the vision tower, by which such files are recognised
        save_model(file, weights, {})
    return files
