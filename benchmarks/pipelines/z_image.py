"""The pipeline of Z-Image in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import TextOptions
from sd_scripts.families.z_image.card.memory_facts import CAPTION
from sd_scripts.families.z_image.model import ROPE_BASE, ZImageParams
from sd_scripts.families.z_image.sampling import SHIFT, prompt_captions
from sd_scripts.families.z_image.text import tokenize
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "scale": 5.0}
"""Options of generating that all rows share."""


def make_transformer(params: ZImageParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return ZImageTransformer2DModel(
        in_channels=params.channels // 4,
        dim=params.width,
        n_layers=params.blocks,
        n_refiner_layers=params.refiners,
        n_heads=params.heads,
        n_kv_heads=params.heads,
        cap_feat_dim=params.text_width,
        rope_theta=ROPE_BASE,
        axes_dims=list(params.rope_widths),
        axes_lens=[1536, 512, 512],
    )


def make_scheduler(shift: float = SHIFT) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(shift=shift)


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKL.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any, text_encoder: Any = None, tokenizer: Any = None) -> Any:
    """Return the pipeline, by default without the text encoder."""
    return ZImagePipeline(
        scheduler=make_scheduler(), vae=vae, text_encoder=text_encoder, tokenizer=tokenizer, transformer=denoiser
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance, which the pipeline counts from 0, and random text embeddings of the captions' lengths."""
    denoiser: Any = components.denoiser
    mask = tokenize(components, prompt_captions(prompt), TextOptions.of(settings))[0]["mask"]
    *negative, positive = ([torch.randn(length, denoiser.params.text_width)] for length in mask.sum(1).tolist())
    guided = {"negative_prompt_embeds": negative[0]} if negative else {}
    return {"guidance_scale": prompt.scale - 1, "prompt_embeds": positive, **guided}


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one image of this size in pixels and a usual caption."""
    config = transformer.config
    return {
        "x": [torch.randn(config.in_channels, 1, height // 8, width // 8)],
        "t": torch.tensor([0.5]),
        "cap_feats": [torch.randn(CAPTION, config.cap_feat_dim)],
    }
