"""The pipeline of Wan 2.1 T2V in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel

from sd_scripts.families.cards.shared_components import UMT5_TOKENS
from sd_scripts.families.common.components import Components
from sd_scripts.families.wan.model import WanParams
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 832, "height": 480, "frames": 81, "scale": 5.0}
"""Options of generating that all rows share."""
SHIFT = 3.0


def make_transformer(params: WanParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return WanTransformer3DModel(
        num_attention_heads=params.heads,
        attention_head_dim=params.width // params.heads,
        in_channels=params.in_channels,
        out_channels=params.channels,
        text_dim=params.text_width,
        ffn_dim=params.mlp_width,
        num_layers=params.blocks,
    )


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKLWan.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any) -> Any:
    """Return the pipeline without text encoder."""
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT, num_train_timesteps=1000
    )
    return WanPipeline(tokenizer=None, text_encoder=None, vae=vae, scheduler=scheduler, transformer=denoiser)


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings in the pipeline's format."""
    denoiser: Any = components.denoiser
    embeds = (torch.randn(1, UMT5_TOKENS, denoiser.params.text_width) for _ in range(2))
    return {"guidance_scale": prompt.scale, "prompt_embeds": next(embeds), "negative_prompt_embeds": next(embeds)}


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one clip of this size in pixels."""
    return {
        "hidden_states": torch.randn(1, transformer.config.in_channels, 1 + frames // 4, height // 8, width // 8),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, UMT5_TOKENS, transformer.config.text_dim),
    }
