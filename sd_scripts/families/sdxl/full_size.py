"""SDXL 1.0 base at full size with random weights, and the runs that the benchmark times with it."""

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families.components import DENOISER, VAE
from sd_scripts.families.full_size import (
    ADAFACTOR,
    ADAPTERS,
    AUTOENCODER,
    AUTOTUNED,
    CHECKPOINTING,
    CLIP_L,
    COMPILED,
    FUSED,
    GRAPHS,
    QUANTIZED,
    UNRECORDED,
    random_weights,
    unknown,
)
from sd_scripts.families.sdxl.load import single_file
from sd_scripts.library.safetensors_io import save_model
from sd_scripts.options.model import MODEL

SDXL_CONFIG: dict[str, Any] = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
TEXT_ENCODER2: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}

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
        "graphs_masters": GRAPHS | {"full_bf16": False},
        "fused": FUSED,
        "fused_adafactor": ADAFACTOR,
        "adafactor_swap16": ADAFACTOR | {"blocks_to_swap": 16},
        "adafactor_swap58": ADAFACTOR | {"blocks_to_swap": 58},
    },
    "textual_inversion": {"eager": {}, "eager_unrecorded": UNRECORDED, "compiled": COMPILED, "graphs": GRAPHS},
}
"""Rows of the benchmark by training method and name: the options that tell each from the others."""


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    with torch.device("meta"):
        return {
            DENOISER: UNet2DConditionModel(**SDXL_CONFIG),
            VAE: AutoencoderKL(latent_channels=4, **AUTOENCODER),
            "text_encoder1": CLIPTextModel(CLIPTextConfig(**CLIP_L)),
            "text_encoder2": CLIPTextModelWithProjection(CLIPTextConfig(**TEXT_ENCODER2)),
        }


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
