"""Wan in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_causal_vae import AUTOENCODER, calibrate
from sd_scripts.families.wan.card import CARD
from sd_scripts.families.wan.conditions import IMAGE_ENCODER
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.library.diffusion.dit_layers import pack_clip
from sd_scripts.library.files.lean_diffusers import AutoencoderKLWan
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    T5_WIDTH,
    Miniature,
    draw_weights,
    fit_denoiser,
    states_of,
    t5_sizes,
    t5_tokenizer,
    weaken_conditioning,
)

PARAMS = WanParams(
    width=128,  # one head
    heads=1,
    mlp_width=256,
    text_width=T5_WIDTH,
    blocks=5,  # with blocks_to_swap = 2, four take turns
)
SHIFT = 3.0
"""Timestep shift of the fit, as recommended for training."""
TEXT = 0.2
"""How much of the text reaches the tokens."""
DISTURBANCE = 5.0
"""How strong attention is compared with what bypasses it."""


def write_miniature(folder: Path, params: WanParams = PARAMS, autoencoder: dict[str, Any] = AUTOENCODER) -> Miniature:
    """Create the three files of a Wan 2.1 T2V, the tokenizer next to them, and captioned images: a few MB, in
    seconds. `params` may be those of an image-to-video model, which gets an image encoder too."""
    tokenizer = t5_tokenizer()
    modules = tiny_modules(len(tokenizer), params, autoencoder)
    return miniature.write_miniature(CARD, folder, (tokenizer,), states_of(modules))


@torch.no_grad()
def tiny_modules(
    vocabulary: int, params: WanParams = PARAMS, autoencoder: dict[str, Any] = AUTOENCODER
) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    config = UMT5Config(**t5_sizes(vocabulary, params.text_width))
    transformer, vae = WanTransformer(params), AutoencoderKLWan(**autoencoder)
    modules: dict[str, nn.Module] = {DENOISER: transformer, "text_encoder1": UMT5EncoderModel(config), VAE: vae}
    if params.image_width:
        modules[IMAGE_ENCODER] = CLIPVisionModel(_image_config(params.image_width))
    generator = draw_weights(modules)
    weaken_conditioning([transformer.time_projection[1]], transformer.time_embedding[2])  # type: ignore[list-item, arg-type]
    for block in transformer.blocks:
        block.cross_attn.o.weight.mul_(TEXT)  # type: ignore[union-attr, operator]
    _fit(transformer, calibrate(vae)[:, :, None].repeat(4, 1, 1, 1, 1), generator)
    return modules


def _image_config(width: int) -> CLIPVisionConfig:
    return CLIPVisionConfig(
        **{"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 1},
        **{"image_size": 28, "patch_size": 14, "hidden_act": "gelu"},
    )


def _fit(transformer: WanTransformer, latents: Tensor, generator: torch.Generator) -> None:
    blocks: Any = transformer.blocks
    outputs = [block.self_attn.o.weight for block in blocks]
    params, count = transformer.params, len(latents)
    text = torch.zeros(count, 8, T5_WIDTH)
    unknown = latents.new_zeros(count, params.in_channels - params.channels, *latents.shape[2:])
    features = torch.zeros(count, params.image_tokens or 1, params.image_width) if params.image_width else None

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(torch.cat((noisy, unknown), dim=1), text, times, features)

    def tokens(latents: Tensor) -> Tensor:
        """(B, C, f, h, w) -> (B, N, 4C), channels last in each token, as the last layer writes them."""
        return pack_clip(latents).unflatten(-1, (params.channels, -1)).transpose(-1, -2).flatten(-2)

    last = transformer.head.head
    fit_denoiser(last, outputs, latents, generator, run, shift=SHIFT, tokens_of=tokens, strength=DISTURBANCE)
