"""Qwen-Image in diffusers: its transformer and its pipeline around the parts of ours."""

from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel
from torch import Tensor

from sd_scripts.families.family import Components
from sd_scripts.families.qwen_image.model import QwenImageParams
from sd_scripts.library.dit_layers import rope_widths


def transformer_of(state: dict[str, Tensor], params: QwenImageParams) -> Any:
    """A transformer with a copy of these weights."""
    transformer = QwenImageTransformer2DModel(
        num_layers=params.blocks,
        attention_head_dim=params.head_width,
        num_attention_heads=params.heads,
        joint_attention_dim=params.text_width,
        axes_dims_rope=rope_widths(params.head_width),
    )
    transformer.load_state_dict(state)
    return transformer.eval()


def pipeline_of(components: Components, encoder: Any) -> Any:
    """A QwenImagePipeline that shares VAE and tokenizer with `components` and copies the transformer's weights;
    `encoder`: the whole Qwen2.5-VL."""
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
    )
    denoiser: Any = components.denoiser
    made: Any = QwenImagePipeline(
        scheduler=scheduler,
        vae=components.vae,  # type: ignore[arg-type]
        text_encoder=encoder,
        tokenizer=components.tokenizers[0],
        transformer=transformer_of(denoiser.state_dict(), denoiser.params),
    )
    prefix = made.prompt_template_encode.partition("{}")[0]
    made.prompt_template_encode_start_idx = len(components.tokenizers[0](prefix).input_ids)
    made.set_progress_bar_config(disable=True)
    return made
