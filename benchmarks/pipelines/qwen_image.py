"""The pipeline of Qwen-Image in diffusers, without weights."""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import TextOptions
from sd_scripts.families.qwen_image.model import QwenImageParams
from sd_scripts.families.qwen_image.sampling import prompt_captions
from sd_scripts.families.qwen_image.text import TEMPLATE, tokenize
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1328, "height": 1328, "scale": 4.0}
"""Options of generating that all rows share."""


def make_transformer(params: QwenImageParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return QwenImageTransformer2DModel(
        num_layers=params.blocks,
        attention_head_dim=params.head_width,
        num_attention_heads=params.heads,
        joint_attention_dim=params.text_width,
        axes_dims_rope=rope_widths(params.head_width),
    )


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
    )


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKLQwenImage.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any) -> Any:
    """Return the pipeline without text encoders."""
    return QwenImagePipeline(
        scheduler=make_scheduler(), vae=vae, text_encoder=None, tokenizer=None, transformer=denoiser
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the captions' length, in the pipeline's format."""
    denoiser: Any = components.denoiser
    mask = tokenize(components, prompt_captions(prompt), TextOptions.of(settings))[0]["mask"][
        :, TEMPLATE.prefix_length(components) :
    ]
    negative, positive = (
        {
            "prompt_embeds": torch.randn(1, length, denoiser.params.text_width),
            "prompt_embeds_mask": torch.ones(1, length, dtype=torch.int64),
        }
        for length in mask.sum(1).tolist()
    )
    return {
        "true_cfg_scale": prompt.scale,
        **positive,
        **{f"negative_{name}": tensor for name, tensor in negative.items()},
    }
