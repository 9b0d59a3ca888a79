"""SDXL 1.0 base with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from benchmarks.full_size.common.rows import (
    ADAFACTOR,
    ADAMW_8BIT,
    ADAPTERS,
    AUTOTUNED,
    CHECKPOINTING,
    COMPILED,
    FUSED,
    GRAPHS,
    QUANTIZED,
    UNRECORDED,
)
from benchmarks.full_size.common.weights import random_weights, unknown
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.sdxl.card.speeds import SPEEDS
from sd_scripts.families.sdxl.full_size import modules
from sd_scripts.families.sdxl.load import single_file
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.options.model import MODEL

TOKEN: dict[str, Any] = {
    "token_string": "mycat",
    "num_vectors_per_token": 4,
    "use_object_template": True,
    "cache_text_encoder_outputs": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "lora": {
        "network_module": "networks.lora",
        "network_dim": 32,
        "network_alpha": 16.0,
        "network_train_unet_only": True,
        "learning_rate": 1e-4,
    },
    "full": {"full_bf16": True, "learning_rate": 1e-5, "save_model_as": "safetensors"},
    "textual_inversion": {**TOKEN, "learning_rate": 1e-3},
}
"""Options of all rows, by training method."""
TWO_BUCKETS = {"enable_bucket": True}
TWICE = {"gradient_accumulation_steps": 2}
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "graphs": GRAPHS,
        "eager_unrecorded": UNRECORDED,
        "compiled_unrecorded": COMPILED | UNRECORDED,
        "autotuned": AUTOTUNED,
        "eager4": {"train_batch_size": 4},
        "compiled4": COMPILED | {"train_batch_size": 4},
        "graphs4": GRAPHS | {"train_batch_size": 4},
        "compiled_buckets": COMPILED | TWO_BUCKETS,
        "graphs_buckets": GRAPHS | TWO_BUCKETS,
        "compiled_accumulation": COMPILED | TWICE,
        "graphs_accumulation": GRAPHS | TWICE,
        "eager_checkpointing": CHECKPOINTING,
        "compiled_checkpointing": COMPILED | CHECKPOINTING,
        "graphs_checkpointing": GRAPHS | CHECKPOINTING,
        "budget50": COMPILED | {"activation_memory_budget": 0.5},
        "budget0": COMPILED | {"activation_memory_budget": 0.0},
        **QUANTIZED,
        "swap24": COMPILED | CHECKPOINTING | {"blocks_to_swap": 24},
        "swap58": COMPILED | CHECKPOINTING | {"blocks_to_swap": 58},
        **ADAPTERS,
        "adamw8bit": ADAMW_8BIT,
        "adamw8bit_unrecorded": ADAMW_8BIT | UNRECORDED,
        "pivotal": TOKEN,
        "pivotal_graphs": GRAPHS | TOKEN,
    },
    "full": {
        "eager": {},
        "eager_unrecorded": UNRECORDED,
        "compiled": COMPILED,
        "graphs": GRAPHS,
        "eager4": {"train_batch_size": 4},
        "compiled4": COMPILED | {"train_batch_size": 4},
        "adamw8bit": ADAMW_8BIT,
        "adamw8bit_unrecorded": ADAMW_8BIT | UNRECORDED,
        "graphs_masters": GRAPHS | {"full_bf16": False},
        "fused": FUSED,
        "fused_adafactor": ADAFACTOR,
        "adafactor_swap16": ADAFACTOR | {"blocks_to_swap": 16},
        "adafactor_swap58": ADAFACTOR | {"blocks_to_swap": 58},
    },
    "textual_inversion": {"eager": {}, "eager_unrecorded": UNRECORDED, "compiled": COMPILED, "graphs": GRAPHS},
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""

MEASURED_STEPS = MeasuredSteps.of(SPEEDS, launching=0.43, per_image=0.51)
"""Launching eager steps took 0.2 to 0.5 s (2026-11-24_recorded_steps)."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the U-Net on the meta device for one image of this size in pixels."""
    conditions = {"text_embeds": unknown(1, 1280), "time_ids": unknown(1, 6)}
    latents, text = unknown(1, 4, height // 8, width // 8), unknown(1, 77, 2048)
    predicted: Tensor = denoiser(latents, unknown(1), text, added_cond_kwargs=conditions).sample
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the checkpoint, 7 GB in bf16; return it by the option that names it."""
    file = folder / "sdxl.safetensors"
    save_model(file, single_file({name: random_weights(module) for name, module in modules().items()}), {})
    return {MODEL: file}
