"""The pipeline of FLUX.2 klein in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel

from sd_scripts.families.common.components import Components
from sd_scripts.families.flux2.card import LONGEST
from sd_scripts.families.flux2.keys import KEYS
from sd_scripts.families.flux2.model import Flux2Params
from sd_scripts.library.files.state_dicts import State
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "scale": 4.0}
"""Options of generating that all rows share."""


def make_transformer(params: Flux2Params) -> Any:
    """Return diffusers' transformer of these sizes."""
    return Flux2Transformer2DModel(
        patch_size=1,
        in_channels=params.channels,
        num_layers=params.double_blocks,
        num_single_layers=params.single_blocks,
        attention_head_dim=params.head_width,
        num_attention_heads=params.heads,
        joint_attention_dim=params.text_width,
        mlp_ratio=params.mlp_width / params.width,
        axes_dims_rope=(params.head_width // 4,) * 4,
        rope_theta=2000,
        guidance_embeds=False,
    )


def to_diffusers(state: State) -> State:
    """Return a transformer's tensors under diffusers' keys instead of BFL's. Parts of a matrix are views of it."""
    theirs: State = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        names = KEYS.diffusers_modules(module)
        parts = (torch.cat(tensor.chunk(2)[::-1]),) if KEYS.swaps_halves(module) else tensor.chunk(len(names))
        kind = "weight" if kind == "scale" else kind
        theirs.update((f"{name}.{kind}", part) for name, part in zip(names, parts, strict=True))
    return theirs


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKLFlux2.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any, text_encoder: Any = None, tokenizer: Any = None) -> Any:
    """Return the pipeline, by default without the text encoder."""
    return Flux2KleinPipeline(
        scheduler=make_scheduler(), vae=vae, text_encoder=text_encoder, tokenizer=tokenizer, transformer=denoiser
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the shapes that the encoder gives, as the pipeline takes them."""
    denoiser: Any = components.denoiser
    embeddings = {
        name: torch.randn(1, LONGEST, denoiser.params.text_width)
        for name in ("prompt_embeds", "negative_prompt_embeds")
    }
    return {"guidance_scale": prompt.scale, **embeddings}


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one image of this size in pixels."""
    config, (rows, columns) = transformer.config, (height // 16, width // 16)
    positions = torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns), torch.arange(1))
    words = torch.cartesian_prod(torch.arange(1), torch.arange(1), torch.arange(1), torch.arange(LONGEST))
    return {
        "hidden_states": torch.randn(1, rows * columns, config.in_channels),
        "encoder_hidden_states": torch.randn(1, LONGEST, config.joint_attention_dim),
        "timestep": torch.tensor([0.5]),
        "img_ids": positions[None],
        "txt_ids": words[None],
    }
