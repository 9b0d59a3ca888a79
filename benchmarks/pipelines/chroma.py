"""The pipeline of Chroma in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL, ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from benchmarks.pipelines import flux
from sd_scripts.families.chroma.card.memory_facts import CAPTION
from sd_scripts.families.chroma.keys import APPROXIMATOR, diffusers_modules
from sd_scripts.families.chroma.model import ChromaParams
from sd_scripts.families.common.components import Components
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.library.files.state_dicts import State
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "scale": 4.0}
"""Options of generating that all rows share."""


class MaskingPipeline(ChromaPipeline):  # type: ignore[misc]
    """diffusers 0.42 adds the mask, as numbers 0 and 1, to the logits of attention, which hides nothing."""

    def _prepare_attention_mask(self, *arguments: Any, **more: Any) -> Tensor | None:
        mask = super()._prepare_attention_mask(*arguments, **more)
        return None if mask is None else mask.bool()


def make_transformer(shape: ChromaParams) -> Any:
    """Return diffusers' transformer of these sizes."""
    return ChromaTransformer2DModel(
        patch_size=1,
        in_channels=shape.channels,
        num_layers=shape.double_blocks,
        num_single_layers=shape.single_blocks,
        attention_head_dim=shape.head_width,
        num_attention_heads=shape.heads,
        joint_attention_dim=shape.text_width,
        axes_dims_rope=rope_widths(shape.head_width),
        approximator_num_channels=shape.approximator_channels,
        approximator_hidden_dim=shape.approximator_width,
        approximator_layers=shape.approximator_layers,
    )


def to_diffusers(state: State) -> State:
    """Return a transformer's tensors under diffusers' keys instead of the original ones."""
    blocks = {key: tensor for key, tensor in state.items() if not key.startswith(APPROXIMATOR)}
    theirs = flux.to_diffusers(blocks)
    for key in state.keys() - blocks.keys():
        module, _, kind = key.rpartition(".")
        (name,) = diffusers_modules(module)
        theirs[f"{name}.{'weight' if kind == 'scale' else kind}"] = state[key]
    return theirs


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.shape), AutoencoderKL.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any, text_encoder: Any = None, tokenizer: Any = None) -> Any:
    """Return the pipeline, by default without the text encoder."""
    return MaskingPipeline(
        scheduler=make_scheduler(), vae=vae, text_encoder=text_encoder, tokenizer=tokenizer, transformer=denoiser
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the shapes that the encoder gives, as the pipeline takes them."""
    denoiser: Any = components.denoiser
    tokens = components.extras["t5_length"]
    embeddings = {
        name: torch.randn(1, tokens, denoiser.shape.text_width) for name in ("prompt_embeds", "negative_prompt_embeds")
    }
    masks = {f"{name.removesuffix('embeds')}attention_mask": torch.ones(1, tokens) for name in embeddings}
    return {"guidance_scale": prompt.scale, **embeddings, **masks}


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one image of this size in pixels and a usual caption."""
    config, (rows, columns) = transformer.config, (height // 16, width // 16)
    return {
        "hidden_states": torch.randn(1, rows * columns, config.in_channels),
        "encoder_hidden_states": torch.randn(1, CAPTION, config.joint_attention_dim),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns)),
        "txt_ids": torch.zeros(CAPTION, 3, dtype=torch.int64),
        "attention_mask": torch.ones(1, CAPTION + rows * columns, dtype=torch.bool),
    }
