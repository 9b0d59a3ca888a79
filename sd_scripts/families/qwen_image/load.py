"""Qwen-Image's components: how each is made from its files, held in memory, and what does not fit together."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

from sd_scripts.families.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.layouts import Layout
from sd_scripts.families.network_problems import network_problems
from sd_scripts.families.qwen_image import keys, lora
from sd_scripts.families.qwen_image.memory import (
    holds_in_fp8,
    holds_text_in_fp8,
    max_blocks_to_swap,
    quantize_text_encoder,
)
from sd_scripts.families.qwen_image.model import QwenImageParams, QwenImageTransformer
from sd_scripts.library import fp8
from sd_scripts.library.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.tokenizers import QWEN
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.settings import Settings

TEXT_ENCODER = "text_encoder1"
LINEAR = re.compile(r"(transformer_blocks|(model\.|model\.language_model\.)?layers)\..*\.weight")
"""Names and keys of weights that can be held in fp8."""

LAYOUTS = {
    DENOISER: Layout(make=lambda shapes: QwenImageTransformer(QwenImageParams.of(shapes))),
    TEXT_ENCODER: Layout(
        make=lambda shapes: Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**keys.language_config(shapes))),
        unify=keys.language_model,
        tokenizer=QWEN,
    ),
    VAE: Layout(make=lambda shapes: AutoencoderKLQwenImage(**keys.vae_config(shapes)), unify=keys.vae_from_single_file),
}


def prepare(components: Components, settings: Settings) -> None:
    """Weights that are to be held in fp8 keep the dtype of their file until they are quantized, one by one. A
    transformer with swapped blocks is loaded to the CPU: it may not fit on the device."""
    sources, swaps = components.sources, settings[MemoryOptions].blocks_to_swap
    denoiser, encoder = sources[DENOISER], sources[TEXT_ENCODER]
    keep = becomes_fp8 if holds_in_fp8(settings) else None
    sources[DENOISER] = replace(denoiser, keep=keep, device="cpu" if swaps else denoiser.device)
    if holds_text_in_fp8(settings):
        finish = partial(quantize_text_encoder, dtype=encoder.dtype)
        sources[TEXT_ENCODER] = replace(encoder, keep=becomes_fp8, finish=finish)


def becomes_fp8(name: str, tensor: Tensor) -> bool:
    """Return whether a Linear's weight can be held in fp8; e5m2 must be widened first."""
    fits = tensor.ndim == 2 and not any(size % fp8.MULTIPLE for size in tensor.shape)
    return fits and tensor.dtype != torch.float8_e5m2 and bool(LINEAR.fullmatch(name))


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of another model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: QwenImageParams = transformer.params
    return [
        *_component_problems(sources, params),
        *_swap_problems(params, settings),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]


def _component_problems(sources: Mapping[str, WeightSource], params: QwenImageParams) -> list[str]:
    problems: list[str] = []
    config: Any
    if encoder := sources.get(TEXT_ENCODER):
        config = encoder.empty.config
        if config.hidden_size != params.text_width:
            problems.append(
                f"text_encoder: '{encoder.path}' produces vectors of {config.hidden_size} values, but the transformer "
                f"expects {params.text_width}; choose the Qwen2.5-VL-7B text encoder of Qwen-Image"
            )
    if vae := sources.get(VAE):
        config = vae.empty.config
        if config.input_channels != 3:
            problems.append(
                f"vae: '{vae.path}' is the VAE of Qwen-Image-Layered, which encodes transparency; choose that of "
                "Qwen-Image"
            )
        elif config.z_dim != params.channels // 4:
            problems.append(
                f"vae: '{vae.path}' produces latents of {config.z_dim} channels, but the transformer expects "
                f"{params.channels // 4}; choose the VAE of Qwen-Image"
            )
    return problems


def _swap_problems(params: QwenImageParams, settings: Settings) -> list[str]:
    swap, most = settings[MemoryOptions].blocks_to_swap or 0, max_blocks_to_swap(params.blocks)
    if swap <= most:
        return []
    return [
        f"blocks_to_swap: {swap} exceeds {most}, the most that a model with {params.blocks} blocks can swap; "
        + (f"set {most} or less" if most else "leave it unset")
    ]
