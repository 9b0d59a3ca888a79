"""FLUX.1: our transformer and sd-scripts', without weights."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size.common.weights import QUIET
from benchmarks.full_size.flux import OPTIONS
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.common.family import StepInputs
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.flux.tiny import SHAPE
from sd_scripts.library.diffusion.dit_layers import rope_widths
from sd_scripts.library.files.state_dicts import State

KINDS = {
    "image attention": r"double_blocks_\d+_img_attn_",
    "text attention": r"double_blocks_\d+_txt_attn_",
    "image MLP": r"double_blocks_\d+_img_mlp_",
    "text MLP": r"double_blocks_\d+_txt_mlp_",
    "double modulation": r"double_blocks_\d+_\w+_mod_lin",
    "single linear1": r"single_blocks_\d+_linear1",
    "single linear2": r"single_blocks_\d+_linear2",
    "single modulation": r"single_blocks_\d+_modulation_lin",
}
"""Kind of layer -> its names in LoRA files."""
TIMESTEPS = (0.125, 0.376, 0.624, 0.936)
"""Thousandths that sd-scripts' rounding of timesteps to bf16 does not change."""
GAINS = {"mod": QUIET}
"""Parts of names of weights -> their scale."""
NETWORK = "networks.lora_flux"
"""sd-scripts' LoRA module."""


def make_denoiser(*, miniature: bool) -> FluxTransformer:
    """Return our transformer."""
    return FluxTransformer(SHAPE if miniature else FluxParams())


def shapes(denoiser: FluxTransformer, *, miniature: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the latents and of the text embeddings."""
    shape = denoiser.shape
    side, length = (16, 24) if miniature else (128, 512)
    return {
        "latents": (1, shape.channels // 4, side, side),
        "t5_out": (1, length, shape.text_width),
        "l_pooled": (1, shape.pooled_width),
    }


def conditioning(extent: Extent) -> dict[str, Tensor]:
    """Return the inputs of an image besides latents and text: none."""
    return {}


def make_theirs(denoiser: FluxTransformer) -> Any:
    """Return sd-scripts' transformer of the same sizes."""
    from library import flux_models

    shape = denoiser.shape
    return flux_models.Flux(
        flux_models.FluxParams(
            in_channels=shape.channels,
            vec_in_dim=shape.pooled_width,
            context_in_dim=shape.text_width,
            hidden_size=shape.width,
            mlp_ratio=shape.mlp_width / shape.width,
            num_heads=shape.heads,
            depth=shape.double_blocks,
            depth_single_blocks=shape.single_blocks,
            axes_dim=list(rope_widths(shape.head_width)),
            theta=10_000,
            qkv_bias=True,
            guidance_embed=shape.guidance,
        )
    )


def their_state(state: State) -> State:
    """Return the transformer's tensors under sd-scripts' keys, which equal ours and those of the file."""
    return state


def predict_theirs(model: nn.Module, inputs: StepInputs, dtype: torch.dtype) -> Tensor:
    """Call sd-scripts' transformer as its trainer does with mixed_precision of this dtype; return the velocity
    (B, 16, h, w)."""
    from library import flux_utils

    noisy = inputs.model["noisy"].to(dtype)
    text = inputs.text["t5_out"].to(dtype)
    count, _, height, width = noisy.shape
    grid = height // 2, width // 2
    timesteps = (1000 * inputs.model["timesteps"]).to(dtype)
    predicted = model(
        img=flux_utils.pack_latents(noisy),
        img_ids=flux_utils.prepare_img_ids(count, *grid).to(noisy.device),
        txt=text,
        txt_ids=torch.zeros(*text.shape[:2], 3, device=noisy.device),
        y=inputs.text["l_pooled"].to(dtype),
        timesteps=timesteps / 1000,
        guidance=torch.full((count,), OPTIONS["lora"]["guidance_scale"], device=noisy.device),
    )
    velocity: Tensor = flux_utils.unpack_latents(predicted, *grid)
    return velocity
