"""The pipeline of Krea 2 in diffusers, without weights."""

from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import TextOptions
from sd_scripts.families.krea2.card.memory_facts import CAPTION
from sd_scripts.families.krea2.keys import KEYS
from sd_scripts.families.krea2.model import Krea2Params, rope_widths
from sd_scripts.families.krea2.sampling import prompt_captions
from sd_scripts.families.krea2.text import LAYERS, TEMPLATE, tokenize
from sd_scripts.library.files.state_dicts import State
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

OPTIONS: dict[str, Any] = {"width": 1024, "height": 1024, "scale": 5.5}
"""Options of generating that all rows share."""


def make_transformer(params: Krea2Params) -> Any:
    """Return diffusers' transformer of these sizes."""
    return Krea2Transformer2DModel(
        in_channels=params.channels,
        num_layers=params.blocks,
        attention_head_dim=params.head_width,
        num_attention_heads=params.heads,
        num_key_value_heads=params.key_heads,
        intermediate_size=params.mlp_width,
        timestep_embed_dim=params.time_channels,
        text_hidden_dim=params.text_width,
        num_text_layers=params.text_states,
        text_num_attention_heads=params.text_heads,
        text_num_key_value_heads=params.text_key_heads,
        text_intermediate_size=params.text_mlp_width,
        num_layerwise_text_blocks=params.text_blocks,
        num_refiner_text_blocks=params.text_blocks,
        axes_dims_rope=rope_widths(params),
    )


def to_diffusers(state: State) -> State:
    """Return a transformer's tensors under diffusers' keys instead of Krea's."""
    theirs: State = {}
    for key, tensor in state.items():
        if key.endswith(".lin"):
            (name,) = KEYS.diffusers_modules(key)
            theirs[name] = tensor.view(6, -1) if tensor.ndim == 1 else tensor
        else:
            module, _, kind = key.rpartition(".")
            (name,) = KEYS.diffusers_modules(module)
            theirs[f"{name}.{'weight' if kind == 'scale' else kind}"] = tensor
    return theirs


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256, max_image_seq_len=6400
    )


def make_modules(components: Components) -> tuple[Any, Any]:
    """Return a denoiser and a VAE like the opened ones, on the default device and in the default dtype."""
    opened: Any = components
    return make_transformer(opened.denoiser.params), AutoencoderKLQwenImage.from_config(opened.vae.config)


def make_pipeline(denoiser: Any, vae: Any, text_encoder: Any = None, tokenizer: Any = None, **options: Any) -> Any:
    """Return the pipeline, by default without the text encoder. `options`: is_distilled."""
    return Krea2Pipeline(
        scheduler=make_scheduler(),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=denoiser,
        text_encoder_select_layers=LAYERS,
        **options,
    )


def text_arguments(components: Components, prompt: SamplePrompt, settings: Settings) -> dict[str, Any]:
    """Return guidance and random text embeddings, of the captions' length, in the pipeline's format: its guidance is
    added to the prediction for the prompt, so that 4.5 is 5.5 here."""
    denoiser: Any = components.denoiser
    mask = tokenize(components, prompt_captions(prompt), TextOptions.of(settings))[0]["mask"]
    negative, positive = (
        {
            "prompt_embeds": torch.randn(1, length, denoiser.params.text_states, denoiser.params.text_width),
            "prompt_embeds_mask": torch.ones(1, length, dtype=torch.bool),
        }
        for length in (mask.sum(1) - TEMPLATE.prefix_length(components)).tolist()
    )
    return {
        "guidance_scale": prompt.scale - 1,
        **positive,
        **{f"negative_{name}": tensor for name, tensor in negative.items()},
    }


def step_arguments(transformer: Any, width: int, height: int, frames: int) -> dict[str, Any]:
    """Return random arguments of a training step with one image of this size in pixels and a usual caption."""
    config, (rows, columns) = transformer.config, (height // 16, width // 16)
    positions = torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns))
    return {
        "hidden_states": torch.randn(1, rows * columns, config.in_channels),
        "encoder_hidden_states": torch.randn(1, CAPTION, config.num_text_layers, config.text_hidden_dim),
        "timestep": torch.tensor([0.5]),
        "position_ids": torch.cat([torch.zeros(CAPTION, 3, dtype=torch.int64), positions]),
    }
