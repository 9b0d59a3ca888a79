"""The pipeline of HunyuanVideo in diffusers, without weights."""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)

from sd_scripts.families.cards.shared_components import LLAMA_TOKENS
from sd_scripts.families.common.components import Components
from sd_scripts.families.hunyuan_video.model import HunyuanParams
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 832, "height": 480, "frames": 81, "scale": 1.0, "guidance": 6.0}
"""Options of generating that all rows share."""
SHIFT = 7.0
GUIDANCE = 1000.0
"""Guidance of a training step, multiplied by 1000 as the model reads it."""


def make_transformer(params: HunyuanParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return HunyuanVideoTransformer3DModel(
        in_channels=params.channels,
        out_channels=params.channels,
        num_attention_heads=params.heads,
        attention_head_dim=params.width // params.heads,
        num_layers=params.double_blocks,
        num_single_layers=params.single_blocks,
        num_refiner_layers=params.refiner_blocks,
        text_embed_dim=params.text_width,
        pooled_projection_dim=params.pooled_width,
        rope_axes_dim=rope_widths(params.width // params.heads),
    )


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKLHunyuanVideo.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any) -> Any:
    """Return the pipeline without text encoders, with its VAE in tiles, as ours."""
    pipeline = HunyuanVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=denoiser,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        text_encoder_2=None,
        tokenizer_2=None,
    )
    vae.enable_tiling()
    return pipeline


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings in the pipeline's format."""
    params: Any = components.denoiser
    params = params.params
    return {
        "guidance_scale": prompt.guidance,
        "prompt_embeds": torch.randn(1, LLAMA_TOKENS, params.text_width),
        "pooled_prompt_embeds": torch.randn(1, params.pooled_width),
        "prompt_attention_mask": torch.ones(1, LLAMA_TOKENS, dtype=torch.int64),
    }


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one clip of this size in pixels."""
    config = transformer.config
    return {
        "hidden_states": torch.randn(1, config.in_channels, 1 + frames // 4, height // 8, width // 8),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, LLAMA_TOKENS, config.text_embed_dim),
        "encoder_attention_mask": torch.ones(1, LLAMA_TOKENS, dtype=torch.int64),
        "pooled_projections": torch.randn(1, config.pooled_projection_dim),
        "guidance": torch.tensor([GUIDANCE]),
    }
