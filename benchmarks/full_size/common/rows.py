"""Options of the benchmark's rows that several families share."""

from collections.abc import Mapping
from typing import Any

COMPILED = {"compile": True}
GRAPHS = {"compile": True, "compile_mode": "reduce-overhead"}
UNRECORDED = {"record_steps": False}
AUTOTUNED = {"compile": True, "compile_mode": "max-autotune-no-cudagraphs"}
CHECKPOINTING = {"gradient_checkpointing": True}
ADAMW_8BIT = {"optimizer_type": "AdamW8bit"}
FUSED: dict[str, Any] = COMPILED | CHECKPOINTING | {"fused_backward_pass": True}
ADAFACTOR: dict[str, Any] = FUSED | {
    "optimizer_type": "Adafactor",
    "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"],
}
"""Options of the benchmark's rows."""
ADAPTERS: dict[str, dict[str, Any]] = {
    "lokr": GRAPHS | {"network_type": "lokr", "factor": 8},
    "lokr_full": GRAPHS | {"network_type": "lokr", "factor": 8, "full_matrix": True},
    "lokr_square": GRAPHS | {"network_type": "lokr", "full_matrix": True},
    "loha": GRAPHS | {"network_type": "loha", "network_dim": 8, "network_alpha": 4.0},
    "loha32": GRAPHS | {"network_type": "loha"},
    "dora": GRAPHS | {"network_type": "dora"},
    "lokr_dora": GRAPHS | {"network_type": "lokr", "factor": 8, "dora_wd": True},
    "oft": GRAPHS | {"network_type": "oft"},
    "boft": GRAPHS | {"network_type": "boft", "network_dim": 42},
    "dora_compiled": COMPILED | {"network_type": "dora"},
    "lokr_compiled": COMPILED | {"network_type": "lokr", "factor": 8},
    "loha_compiled": COMPILED | {"network_type": "loha", "network_dim": 8, "network_alpha": 4.0},
}
"""Rows of adapter kinds, to compare with `graphs` and `compiled`."""

QUANTIZED: dict[str, dict[str, Any]] = {
    "eager_int8": {"quantize_base": "int8"},
    "int8": COMPILED | {"quantize_base": "int8"},
    "fp8": COMPILED | {"quantize_base": "fp8"},
    "fp8_computed": COMPILED | {"quantize_base": "fp8", "fp8_compute": True},
    "nf4": COMPILED | {"quantize_base": "nf4"},
    "int8_checkpointing": COMPILED | CHECKPOINTING | {"quantize_base": "int8"},
    "int8_weights_checkpointing": COMPILED | CHECKPOINTING | {"quantize_base": "int8_weight_only"},
    "nf4_checkpointing": COMPILED | CHECKPOINTING | {"quantize_base": "nf4", "quantize_text_encoders": "nf4"},
}
"""Rows of a LoRA on frozen weights of 8 and 4 bits."""

SMALL = COMPILED | CHECKPOINTING


def options_of(recommended: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of all rows of a family, by training method."""
    lora = {"network_dim": 16, "network_alpha": 8.0, "network_train_unet_only": True, "learning_rate": 1e-4}
    full = {"full_bf16": True, "learning_rate": 1e-5}
    return {"lora": {**lora, **recommended}, "full": {**full, **recommended}}


def image_rows(most: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of a family of images by training method and name; `most`: blocks that are swapped."""
    return {
        "lora": {
            "eager": {},
            "compiled": COMPILED,
            "graphs": GRAPHS,
            "compiled_unrecorded": COMPILED | UNRECORDED,
            "compiled_checkpointing": SMALL,
            "fp8_compute": COMPILED | {"fp8_compute": True},
            "fp8_base": SMALL | {"fp8_base": True},
            f"swap{most}_fp8": SMALL | {"blocks_to_swap": most, "fp8_base": True},
        },
        "full": {"compiled_checkpointing": SMALL, "fused": FUSED},
    }


def video_rows(most: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of a family of clips by training method and name; `most`: blocks that can be swapped."""
    return {
        "lora": {
            "eager_checkpointing": CHECKPOINTING,
            "compiled_checkpointing": SMALL,
            "graphs_checkpointing": GRAPHS | CHECKPOINTING,
            "fp8_base": SMALL | {"fp8_base": True},
            "fp8_all": SMALL | {"fp8_base": True, "fp8_compute": True},
            "swap20": SMALL | {"blocks_to_swap": 20},
            f"swap{most}_fp8": SMALL | {"blocks_to_swap": most, "fp8_base": True},
        },
        "full": {"fused": FUSED, "adafactor": ADAFACTOR, "adafactor_swap28": ADAFACTOR | {"blocks_to_swap": 28}},
    }
