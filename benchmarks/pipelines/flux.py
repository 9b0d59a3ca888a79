"""The pipeline of FLUX.1 in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from sd_scripts.families.common.components import Components
from sd_scripts.families.flux.keys import diffusers_modules
from sd_scripts.families.flux.model import FluxParams
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.library.files.state_dicts import State
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "guidance": 3.5}
"""Options of generating that all rows share."""


def make_transformer(shape: FluxParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=shape.channels,
        num_layers=shape.double_blocks,
        num_single_layers=shape.single_blocks,
        attention_head_dim=shape.head_width,
        num_attention_heads=shape.heads,
        joint_attention_dim=shape.text_width,
        pooled_projection_dim=shape.pooled_width,
        guidance_embeds=shape.guidance,
        axes_dims_rope=rope_widths(shape.head_width),
    )


def to_diffusers(state: State) -> State:
    """Return a transformer's tensors under diffusers' keys instead of BFL's. Parts of a matrix are views of it."""
    width = len(state["img_in.weight"])
    theirs: State = {}
    for key, tensor in state.items():
        module, _, kind = key.rpartition(".")
        names = diffusers_modules(module)
        rows = [width] * (len(names) - 1)
        parts = tensor.split([*rows, len(tensor) - sum(rows)])
        if key.startswith("final_layer.adaLN_modulation.1."):
            parts = (torch.cat(tensor.chunk(2)[::-1]),)
        kind = "weight" if kind == "scale" else kind
        theirs.update((f"{name}.{kind}", part) for name, part in zip(names, parts, strict=True))
    return theirs


def make_scheduler(transformer: Any) -> FlowMatchEulerDiscreteScheduler:
    """Return the sampler of dev, or of schnell, which was distilled with uniform steps."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=transformer.config.guidance_embeds)


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.shape), AutoencoderKL.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any) -> Any:
    """Return the pipeline without text encoders."""
    return FluxPipeline(
        scheduler=make_scheduler(denoiser),
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        transformer=denoiser,
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the shapes that the encoders give, as the pipeline takes them."""
    denoiser: Any = components.denoiser
    return {
        "guidance_scale": prompt.guidance,
        "prompt_embeds": torch.randn(1, components.extras["t5_length"], denoiser.shape.text_width),
        "pooled_prompt_embeds": torch.randn(1, denoiser.shape.pooled_width),
    }
