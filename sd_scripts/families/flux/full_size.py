"""FLUX.1 dev at full size with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.random_weights import random_weights
from sd_scripts.library.safetensors_io import save_model

CLIP: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "quick_gelu",
}
T5: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": False,
}
AE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
QUIET = 0.3
"""Scale of the modulations' weights, without which the activations of random blocks grow from block to block."""

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
COMPILED = {"compile": True}
CHECKPOINTING = {"gradient_checkpointing": True}
SMALL = COMPILED | CHECKPOINTING
FUSED = SMALL | {"fused_backward_pass": True}
ADAFACTOR = FUSED | {
    "optimizer_type": "Adafactor",
    "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"],
}
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {
        "eager": {},
        "compiled": COMPILED,
        "eager_checkpointing": CHECKPOINTING,
        "compiled_checkpointing": SMALL,
        "fp8_compute": COMPILED | {"fp8_compute": True},
        "fp8_base": SMALL | {"fp8_base": True},
        "fp8_all": SMALL | {"fp8_base": True, "fp8_compute": True},
        "swap18": SMALL | {"blocks_to_swap": 18},
        "swap34": SMALL | {"blocks_to_swap": 34},
        "swap34_fp8": SMALL | {"blocks_to_swap": 34, "fp8_base": True},
    },
    "full": {
        "fused": FUSED,
        "fused_swap10": FUSED | {"blocks_to_swap": 10},
        "fused_swap18": FUSED | {"blocks_to_swap": 18},
        "adafactor_swap18": ADAFACTOR | {"blocks_to_swap": 18},
        "adafactor_swap35": ADAFACTOR | {"blocks_to_swap": 35},
    },
}
"""Rows of the benchmark by training method and name: the options that tell each from the others."""


def modules() -> dict[str, nn.Module]:
    """Return the four components on the meta device, by the options that name their files."""
    with torch.device("meta"):
        return {
            "pretrained_model_name_or_path": FluxTransformer(FluxParams()),
            "clip_l": CLIPTextModel(CLIPTextConfig(**CLIP)),
            "t5xxl": T5EncoderModel(T5Config(**T5)),
            "ae": AutoencoderKL(**AE),
        }


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 33 GB in bf16; return them by the options that name them."""
    files = {}
    for option, module in modules().items():
        weights = random_weights(module)
        if isinstance(module, FluxTransformer):
            for name in weights:
                weights[name] *= QUIET if "mod" in name else 1.0
        files[option] = folder / f"{option}.safetensors"
        save_model(files[option], weights, {})
    return files
