"""Full-size models for the benchmark: random weights, since their sizes count and not what they know; shared parts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}
CLIP_L: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "hidden_act": "quick_gelu",
}

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

DRAWN = 2**22 + 1
"""Numbers that are drawn and then repeated, since drawing billions takes minutes; odd, so that the rows of a matrix
differ."""


def random_weights(module: nn.Module, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return a state dict for a module on the meta device: matrices that preserve the variance of activations, norms
    of 1 and biases of 0."""
    noise = torch.randn(DRAWN, generator=torch.Generator().manual_seed(0))
    weights = {}
    for name, empty in module.state_dict().items():
        if empty.ndim < 2:
            weights[name] = torch.full(empty.shape, float(name.endswith(("weight", "scale"))), dtype=dtype)
        else:
            scaled = (noise * empty[0].numel() ** -0.5).to(dtype)
            weights[name] = scaled.repeat(-(-empty.numel() // DRAWN))[: empty.numel()].view(empty.shape)
    return weights


Predict = Callable[[nn.Module, int, int], Tensor]
"""Calls a denoiser on the meta device for one image of this width and height in pixels."""


def operations_per_image(denoiser: nn.Module, predict: Predict, width: int, height: int, *, learns: bool) -> int:
    """Return the floating-point operations of a training step for each image: forward, and backward to the inputs, or
    with `learns` to the weights too. Adapters, and what checkpointing repeats, do not count."""
    denoiser.requires_grad_(learns)
    with FlopCounterMode(display=False) as counter:
        predict(denoiser, width, height).sum().backward()
    return counter.get_total_flops()


def unknown(*shape: int) -> Tensor:
    """Return an input on the meta device that has a gradient, as what adapted layers return."""
    return torch.empty(shape, device="meta", requires_grad=True)
