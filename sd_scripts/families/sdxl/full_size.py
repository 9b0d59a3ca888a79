"""SDXL 1.0 base at full size with random weights, and what its steps read: for benchmarks, where no image counts."""

from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

from sd_scripts.families.family import Components
from sd_scripts.families.sdxl.unet import prepare_unet

SDXL_CONFIG: dict[str, Any] = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
"""Of SDXL 1.0 base."""


def random_components(device: torch.device, dtype: torch.dtype) -> Components:
    """The U-Net alone; nothing is encoded in a benchmark."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(**SDXL_CONFIG)
    unet = unet.to_empty(device=device).to(dtype)
    generator = torch.Generator(device).manual_seed(0)
    for name, p in unet.named_parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=p[0].numel() ** -0.5, generator=generator)
        else:
            nn.init.constant_(p, 1.0 if "norm" in name and name.endswith("weight") else 0.0)
    prepare_unet(unet)
    return components_of(unet.requires_grad_(False))


def components_of(unet: UNet2DConditionModel) -> Components:
    return Components(denoiser=unet, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="random")


def random_inputs(components: Components, batch: int, size: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """What a step reads, as objective.py makes it, from noise; size: width and height in pixels."""
    unet: Any = components.denoiser.config
    generator = torch.Generator(device).manual_seed(size[0])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator)

    width, height = size
    first = unet["cross_attention_dim"] * 3 // 8  # 768 of 2048
    pooled = unet["projection_class_embeddings_input_dim"] - 6 * unet["addition_time_embed_dim"]
    return {
        "noisy": normal(batch, 4, height // 8, width // 8),
        "target": normal(batch, 4, height // 8, width // 8),
        "timesteps": torch.randint(0, 1000, (batch,), device=device, generator=generator),
        "sizes": torch.tensor([[height, width, 0, 0, height, width]] * batch, device=device, dtype=torch.float32),
        "loss_weight": torch.ones(batch, device=device),
        "text.hidden_state1": normal(batch, 77, first),
        "text.hidden_state2": normal(batch, 77, unet["cross_attention_dim"] - first),
        "text.pool2": normal(batch, pooled),
    }
