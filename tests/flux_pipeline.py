"""FLUX.1 in diffusers: its pipeline around the parts of ours."""

from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from flux_help import to_diffusers

from sd_scripts.families.family import Components
from sd_scripts.library.dit_layers import rope_widths


def transformer_of(components: Components) -> Any:
    """diffusers' transformer with a copy of the weights of ours."""
    flux: Any = components.denoiser
    shape = flux.shape
    transformer = FluxTransformer2DModel(
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
    transformer.load_state_dict(to_diffusers(flux.state_dict()))
    return transformer.eval()


def pipeline_of(components: Components, kind: Any = FluxPipeline) -> Any:
    """A FluxPipeline that shares autoencoder and encoders with `components` and copies the transformer's weights."""
    transformer = transformer_of(components)
    made = kind(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=transformer.config.guidance_embeds),
        vae=components.vae,
        text_encoder=components.text_encoders[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer=components.tokenizers[0],
        tokenizer_2=components.tokenizers[1],
        transformer=transformer,
    )
    made.set_progress_bar_config(disable=True)
    return made
