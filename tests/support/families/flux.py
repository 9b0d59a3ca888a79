"""FLUX.1 in memory: settings of its LoRA script and tiny parts with random weights."""

from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.scripts import FLUX_LORA

TEXT_WIDTH, POOLED_WIDTH, TOKENS = 48, 40, 6
SHAPE = {
    "width": 64,
    "heads": 2,
    "mlp_width": 128,
    "text_width": TEXT_WIDTH,
    "pooled_width": POOLED_WIDTH,
    "double_blocks": 1,
    "single_blocks": 1,
}


def flux_settings(**values: Any) -> Settings:
    return from_values(FLUX_LORA, {"learning_rate": 1e-4, **values})


def tiny_parts(*, guidance: bool = True) -> Components:
    """A transformer and an autoencoder, the same at every call; no text encoders."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = FluxTransformer(FluxParams(**SHAPE, guidance=guidance))
        vae = AutoencoderKL(
            block_out_channels=(32, 32, 32, 32),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            latent_channels=16,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
    return Components(
        denoiser=transformer.eval().requires_grad_(False),
        vae=vae.eval().requires_grad_(False),
        text_encoders=[],
        tokenizers=[],
        source="tiny",
        extras={"variant": "dev" if guidance else "schnell"},
    )


def text_of(count: int, known: int = 4) -> dict[str, Tensor]:
    """Possible outputs of the text encoders; the first `known` tokens are text."""
    mask = torch.zeros(count, TOKENS, dtype=torch.long)
    mask[:, :known] = 1
    return {
        "l_pooled": torch.randn(count, POOLED_WIDTH),
        "t5_out": torch.randn(count, TOKENS, TEXT_WIDTH),
        "txt_ids": torch.zeros(count, TOKENS, 3),
        "t5_attn_mask": mask,
        "apply_t5_attn_mask": torch.zeros(count, dtype=torch.bool),
    }


def batch_of(latents: Tensor, mask: Tensor | None = None) -> Batch:
    count = len(latents)
    extent = Extent(8 * latents.shape[-1], 8 * latents.shape[-2])
    return Batch(
        extent=extent,
        bucket=extent,
        captions=[Caption("")] * count,
        pixels=None,
        latents=latents,
        loss_weight=torch.ones(count),
        mask=mask,
    )
