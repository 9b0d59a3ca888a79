"""SDXL: our U-Net and sd-scripts', without weights."""

from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.common.family import StepInputs
from sd_scripts.families.sdxl.full_size import SDXL_CONFIG
from sd_scripts.families.sdxl.keys import write_unet
from sd_scripts.library.files.lean_diffusers import UNet2DConditionModel
from sd_scripts.library.files.state_dicts import State

KINDS = {
    **{f"self {part}": rf"attn1_to_{part}$" for part in ("q", "k", "v")},
    "self out": r"attn1_to_out_0$",
    **{f"cross {part}": rf"attn2_to_{part}$" for part in ("q", "k", "v")},
    "cross out": r"attn2_to_out_0$",
    "feed-forward in": r"ff_net_0_proj$",
    "feed-forward out": r"ff_net_2$",
    "proj_in and proj_out": r"_1_proj_(in|out)$",
}
"""Kind of layer -> its names in LoRA files."""
TIMESTEPS = (80, 350, 600, 900)
GAINS = {".to_q.": 1.2, ".to_k.": 1.2}
"""Parts of names of weights -> their scale. With 1, attention is nearly uniform."""
NETWORK = "networks.lora"
"""sd-scripts' LoRA module."""
MINIATURE = SDXL_CONFIG | {"block_out_channels": (32, 64, 128), "attention_head_dim": (1, 1, 2)}
"""sd-scripts' U-Net has fixed widths of the text and numbers of blocks."""


def make_denoiser(*, miniature: bool) -> UNet2DConditionModel:
    """Return our U-Net."""
    return UNet2DConditionModel(**(MINIATURE if miniature else SDXL_CONFIG))


def shapes(denoiser: UNet2DConditionModel, *, miniature: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the latents and of the text embeddings."""
    side = 16 if miniature else 128
    return {
        "latents": (1, 4, side, side),
        "hidden_state1": (1, 77, 768),
        "hidden_state2": (1, 77, 1280),
        "pool2": (1, 1280),
    }


def conditioning(extent: Extent) -> dict[str, Tensor]:
    """Return the inputs of an uncropped image besides latents and text."""
    return {"sizes": torch.tensor([[extent.height, extent.width, 0, 0, extent.height, extent.width]])}


def make_theirs(denoiser: UNet2DConditionModel) -> Any:
    """Return sd-scripts' U-Net of the same widths."""
    from library import sdxl_original_unet

    sdxl_original_unet.MODEL_CHANNELS = denoiser.config.block_out_channels[0]
    sdxl_original_unet.TIME_EMBED_DIM = 4 * sdxl_original_unet.MODEL_CHANNELS
    unet = sdxl_original_unet.SdxlUNet2DConditionModel()
    unet.set_use_sdpa(True)
    return unet


def their_state(state: State) -> State:
    """Return the U-Net's tensors under sd-scripts' keys."""
    return write_unet(state)


def predict_theirs(model: nn.Module, inputs: StepInputs, dtype: torch.dtype) -> Tensor:
    """Call sd-scripts' U-Net as its trainer does with mixed_precision of this dtype; return the noise (B, 4, h, w)."""
    from library.sdxl_original_unet import get_timestep_embedding

    text = inputs.text
    sizes = inputs.model["sizes"]
    embedded = get_timestep_embedding(sizes.flatten(), 256, downscale_freq_shift=0).view(len(sizes), -1)
    predicted: Tensor = model(
        inputs.model["noisy"].to(dtype),
        inputs.model["timesteps"],
        torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=2).to(dtype),
        torch.cat([text["pool2"], embedded], dim=1).to(dtype),
    )
    return predicted
