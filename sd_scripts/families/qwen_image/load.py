"""Qwen-Image's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders.causal_vae import vae_config, vae_from_single_file
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.network_problems import network_problems
from sd_scripts.families.common.placing import Placement, place_transformer, swap_problems
from sd_scripts.families.qwen_image import keys, lora
from sd_scripts.families.qwen_image.model import Modulation, QwenImageParams, QwenImageTransformer
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.text.tokenizers import QWEN
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.settings import Settings

TEXT_ENCODER = "text_encoder1"
LINEAR = re.compile(r"transformer_blocks\..*\.weight")
LANGUAGE_LINEAR = re.compile(r"(model\.|model\.language_model\.)?layers\..*\.weight")
"""Names, and keys in files, of weights that can be quantized."""

LAYOUTS = {
    DENOISER: Layout(make=lambda shapes: QwenImageTransformer(QwenImageParams.of(shapes)), quantizable=LINEAR),
    TEXT_ENCODER: Layout(
        make=lambda shapes: Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**keys.language_config(shapes))),
        unify=keys.language_model,
        tokenizer=QWEN,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: Layout(make=lambda shapes: AutoencoderKLQwenImage(**vae_config(shapes)), unify=vae_from_single_file),
}


def place(components: Components, placement: Placement, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options specify: 41 GB in bf16."""
    transformer = cast(QwenImageTransformer, components.denoiser)
    kinds: Any = [(transformer.transformer_blocks, placement.swapped_blocks)]
    place_transformer(transformer, kinds, placement.quantization, device, few_tokens=Modulation)


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: QwenImageParams = transformer.params
    most = max(0, params.blocks - SLOTS)
    model = f"a model with {params.blocks} blocks"
    return [
        *_component_problems(sources, params),
        *swap_problems(settings.get(MemoryOptions), most, model),
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
                f"vae: '{vae.path}' is the VAE of Qwen-Image-Layered, which encodes transparency; choose the VAE "
                "of Qwen-Image"
            )
        elif config.z_dim != params.channels // 4:
            problems.append(
                f"vae: '{vae.path}' produces latents of {config.z_dim} channels, but the transformer expects "
                f"{params.channels // 4}; choose the VAE of Qwen-Image"
            )
    return problems
