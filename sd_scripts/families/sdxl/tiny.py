"""SDXL in miniature: a checkpoint of the real layout with tiny widths and random weights, for the demo and for tests.

Latents have the mean and variance of SDXL's, and the last layer is fitted to random features, computed without
attention. Attention, which LoRA adapts, then disturbs a fair denoiser, so that the loss falls within a few dozen steps.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, Transformer2DModel, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.sdxl.keys import VAE_SCALE
from sd_scripts.families.sdxl.load import single_file
from sd_scripts.library.diffusion.noise import expand_to, noise_schedule
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.options.model import MODEL
from sd_scripts.testing import demo_images
from sd_scripts.testing.miniature import (
    AUTOENCODER,
    Miniature,
    calibrate,
    clip_config,
    clip_tokenizer,
    draw_weights,
    input_of,
    least_squares,
    without_attention,
)

TEXT_WIDTHS = (64, 128)
"""They must differ: other programs distinguish the two encoders by them."""
UNET: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (32, 32, 32),  # equal widths share compiled graphs: so that the demo is quick on two cores
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 1, 1),
    "attention_head_dim": (1, 1, 1),
    "cross_attention_dim": sum(TEXT_WIDTHS),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 6 * 256 + TEXT_WIDTHS[1],
}

NARROW: dict[str, Any] = {"block_out_channels": (160, 192, 224), "attention_head_dim": (2, 3, 3)}
"""Widths that differ from level to level as in SDXL, so that the same number of graphs is needed. Like SDXL's they are
larger than the sides of latents: dynamic graphs would take equal ones for the same dimension."""


def write_narrow(folder: Path) -> Miniature:
    """Create a miniature that needs the same number of compiled graphs as SDXL."""
    return write_miniature(folder, UNET | NARROW)


def write_miniature(folder: Path, unet: Mapping[str, Any] = UNET) -> Miniature:
    """Create a checkpoint, its tokenizers next to it and a folder of captioned images: a few MB, in a few seconds."""
    data_dir = demo_images.write_images(folder / "images")
    checkpoint = folder / "miniature_sdxl.safetensors"
    tokenizer = clip_tokenizer()
    for name in ("tokenizer", "tokenizer_2"):
        tokenizer.save_pretrained(folder / f"{checkpoint.stem}_tokenizers" / name)
    states = {name: module.state_dict() for name, module in tiny_modules(len(tokenizer), unet).items()}
    save_model(checkpoint, single_file(states), {})
    return Miniature(family="sdxl", files={MODEL: checkpoint}, data_dir=data_dir)


@torch.no_grad()
def tiny_modules(vocabulary: int, config: Mapping[str, Any] = UNET) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call. `config` is the U-Net's."""
    unet, vae = (
        UNet2DConditionModel(**config),
        AutoencoderKL(latent_channels=4, scaling_factor=VAE_SCALE, **AUTOENCODER),
    )
    modules = {
        DENOISER: unet,
        VAE: vae,
        "text_encoder1": CLIPTextModel(clip_config(vocabulary, TEXT_WIDTHS[0], "quick_gelu")),
        "text_encoder2": CLIPTextModelWithProjection(clip_config(vocabulary, TEXT_WIDTHS[1], "gelu")),
    }
    generator = draw_weights(modules)
    latents = calibrate(vae)
    attention_outputs = [m.proj_out.weight for m in unet.modules() if isinstance(m, Transformer2DModel)]
    with without_attention(attention_outputs, generator):
        _fit(unet, latents.repeat(4, 1, 1, 1), generator)
    return modules


def _fit(unet: Any, latents: Tensor, generator: torch.Generator) -> None:
    """Fit the last convolution by least squares to predict the noise in `latents` from its input features."""
    noise = torch.randn(latents.shape, generator=generator)
    steps = torch.randint(1000, (len(latents),), generator=generator)
    signal = expand_to(noise_schedule(latents.device).alphas_cumprod[steps], latents)
    noisy = signal.sqrt() * latents + (1 - signal).sqrt() * noise
    added = {"text_embeds": torch.zeros(len(latents), TEXT_WIDTHS[1]), "time_ids": torch.full((len(latents), 6), 256)}
    text = torch.zeros(len(latents), 77, sum(TEXT_WIDTHS))
    features = input_of(unet.conv_out, lambda: unet(noisy, steps, text, added_cond_kwargs=added))
    patches = F.unfold(features, 3, padding=1).movedim(1, -1).flatten(0, 1)  # (B·H·W, C·9)
    target = noise.flatten(2).movedim(1, -1).flatten(0, 1)  # (B·H·W, 4)
    weight = least_squares(patches, target)  # (4, C·9)
    unet.conv_out.weight.copy_(weight.view_as(unet.conv_out.weight))
    unet.conv_out.bias.zero_()
