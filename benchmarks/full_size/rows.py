"""Options of the benchmark's rows that several families share."""

from typing import Any

COMPILED = {"compile": True}
GRAPHS = {"compile": True, "compile_mode": "reduce-overhead"}
UNRECORDED = {"record_steps": False}
AUTOTUNED = {"compile": True, "compile_mode": "max-autotune-no-cudagraphs"}
CHECKPOINTING = {"gradient_checkpointing": True}
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
