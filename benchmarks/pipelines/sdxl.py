"""The pipeline of SDXL in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import Tensor

from sd_scripts.families.common.components import Components
from sd_scripts.families.sdxl.samplers import make_sampler
from sd_scripts.library.text.tokenizers import CLIP_LENGTH
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

SAMPLER = "euler"
OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "scale": 7.0, "sampler": SAMPLER}
"""Options of generating that all rows share."""


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return UNet2DConditionModel.from_config(opened.denoiser.config), AutoencoderKL.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any) -> Any:
    """Return the pipeline without text encoders."""
    return StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=denoiser,
        scheduler=make_sampler(SAMPLER, velocity=False, zero_terminal_snr=False),
        add_watermarker=False,
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the shapes that the encoders give, as the pipeline takes them."""
    config: Any = components.denoiser.config
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim

    def states() -> Tensor:
        return torch.randn(1, CLIP_LENGTH, config.cross_attention_dim)

    return {
        "guidance_scale": prompt.scale,
        "prompt_embeds": states(),
        "pooled_prompt_embeds": torch.randn(1, pooled),
        "negative_prompt_embeds": states(),
        "negative_pooled_prompt_embeds": torch.randn(1, pooled),
    }
