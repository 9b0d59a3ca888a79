"""Wan's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.common.encoders.causal_vae import LEVELS, vae_config, vae_from_single_file
from sd_scripts.families.common.encoders.outlines import UMT5EncoderOutline
from sd_scripts.families.common.encoders.t5 import finish_t5, t5_config
from sd_scripts.families.common.encoders.vision import vision_config
from sd_scripts.families.common.layouts import Layout, make_text_encoder
from sd_scripts.families.common.placing import Placement, place_transformer, swap_problems
from sd_scripts.families.common.problems import network_problems
from sd_scripts.families.wan import keys, lora
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.card.options import WanModelOptions
from sd_scripts.families.wan.card.tasks import Task, task_of
from sd_scripts.families.wan.conditions import IMAGE_ENCODER, READS_START, follows_control
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.families.wan.text import UMT5
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan
from sd_scripts.library.files.state_dicts import Shapes
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.settings import Settings

TEXT_ENCODER = "text_encoder1"
LINEAR = re.compile(r"blocks\..*\.weight")
UMT5_LINEAR = re.compile(r"encoder\.block\.(?!.*relative_attention_bias).*\.weight")
"""Names of weights that can be quantized. UMT5's relative bias is a lookup table, not a matrix product."""


def make_vae(shapes: Shapes) -> nn.Module:
    """Return the VAE of Wan 2.1, from shapes under diffusers' keys. Raises KeyError with a missing key, or ValueError
    for Wan 2.2's."""
    if LEVELS in shapes:
        raise ValueError("it is the VAE of Wan 2.2's 5B model")
    config = vae_config(shapes)
    channels = config.pop("input_channels")
    return AutoencoderKLWan(**config, in_channels=channels, out_channels=channels)


CLIP: dict[str, Any] = {"head_width": 80, "class_tokens": 1, "hidden_act": "gelu"}
"""Of ViT-H/14; shapes do not determine it."""
TRANSFORMER = Layout(
    make=lambda shapes: WanTransformer(WanParams.of(shapes)), unify=keys.transformer_from_diffusers, quantizable=LINEAR
)
LAYOUTS = {
    DENOISER: TRANSFORMER,
    TEXT_ENCODER: Layout(
        make=lambda shapes: make_text_encoder("UMT5EncoderModel", "UMT5Config", t5_config(shapes)),
        outline=lambda shapes: UMT5EncoderOutline(**t5_config(shapes)),
        unify=keys.umt5_encoder,
        tokenizer=UMT5,
        quantizable=UMT5_LINEAR,
    ),
    HIGH_NOISE: TRANSFORMER,
    VAE: Layout(make=make_vae, unify=vae_from_single_file),
    IMAGE_ENCODER: Layout(
        make=lambda shapes: make_text_encoder("CLIPVisionModel", "CLIPVisionConfig", vision_config(shapes, **CLIP)),
        unify=keys.clip_encoder,
    ),
}


def prepare(components: Components, settings: Settings) -> None:
    umt5 = components.sources[TEXT_ENCODER]
    components.sources[TEXT_ENCODER] = replace(umt5, finish=partial(finish_t5, dtype=umt5.dtype))
    components.extras[READS_START] = task_of(settings[WanModelOptions].task).reads_start


def place(components: Components, placement: Placement, device: torch.device) -> None:
    """Move the transformer to the device, quantized and with swapped blocks as the options specify: 29 GB in bf16. The
    weights of a second model, which takes its place, follow."""
    transformer = cast(WanTransformer, components.denoiser)
    place_model(transformer, placement, device)
    if experts := components.experts:
        components.load(HIGH_NOISE)
        high = cast(WanTransformer, components.module(HIGH_NOISE))
        experts.join(transformer, high, list(high.blocks), placement)
        components.free(HIGH_NOISE)


def place_model(transformer: WanTransformer, placement: Placement, device: torch.device) -> None:
    kinds: Any = [(transformer.blocks, placement.swapped_blocks)]
    place_transformer(transformer, kinds, placement.quantization, device)


def problems(sources: Mapping[str, WeightSource], settings: Settings) -> list[str]:
    """Return problems of components of a different model, and of options that the transformer limits."""
    transformer: Any = sources[DENOISER].empty
    params: WanParams = transformer.params
    return [
        *_component_problems(sources, params),
        *_image_problems(sources.get(IMAGE_ENCODER), params, task_of(settings[WanModelOptions].task)),
        *swap_problems(
            settings.get(MemoryOptions), max(0, params.blocks - SLOTS), f"a model with {params.blocks} blocks"
        ),
        *network_problems(sources[DENOISER], lora.TRANSFORMER, settings),
    ]


def _component_problems(sources: Mapping[str, WeightSource], params: WanParams) -> list[str]:
    problems: list[str] = []
    config: Any
    if encoder := sources.get(TEXT_ENCODER):
        config = encoder.empty.config
        if config.d_model != params.text_width:
            problems.append(
                f"t5: '{encoder.path}' produces vectors of {config.d_model} values, but the transformer expects "
                f"{params.text_width}; choose the UMT5-XXL text encoder of Wan"
            )
    if vae := sources.get(VAE):
        config = vae.empty.config
        if config.z_dim != params.channels:
            problems.append(
                f"vae: '{vae.path}' produces latents of {config.z_dim} channels, but the transformer expects "
                f"{params.channels}; choose the VAE of this model"
            )
    high: Any = sources[HIGH_NOISE].empty if HIGH_NOISE in sources else None
    if high is not None and high.params != params:
        problems.append(
            f"dit_high_noise: '{sources[HIGH_NOISE].path}' is not of the same model as the transformer; choose the one "
            "that belongs to it"
        )
    return problems


def _image_problems(clip: WeightSource | None, params: WanParams, task: Task) -> list[str]:
    """Return a problem if the transformer reads image features that no encoder makes."""
    needed = task.reads_start or not follows_control(params)
    if params.image_width is None or (clip is None and not needed):
        return []
    if clip is None:
        return ["clip: not set, but this model reads an image; set it to the file of CLIP's image encoder"]
    config: Any = clip.empty.config
    if config.hidden_size == params.image_width:
        return []
    return [
        f"clip: '{clip.path}' produces vectors of {config.hidden_size} values, but the transformer expects "
        f"{params.image_width}; choose the CLIP ViT-H image encoder of Wan"
    ]
