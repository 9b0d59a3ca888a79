"""Krea 2 in miniature: files of the real layout with tiny widths and random weights, for the demo and tests."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_causal_vae import AUTOENCODER, calibrate
from sd_scripts.families.common.encoders.tiny_qwen3 import WIDTH, qwen3_tokenizer, tiny_config
from sd_scripts.families.krea2.card import CARD
from sd_scripts.families.krea2.card.timesteps import krea2_shift
from sd_scripts.families.krea2.load import ROPE_THETA, TEXT_ENCODER
from sd_scripts.families.krea2.model import Krea2Params, Krea2Transformer, Table
from sd_scripts.families.krea2.text import LAYERS
from sd_scripts.library.diffusion.dit_layers import grid_of, pack
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import CONDITIONING, Miniature, draw_weights, fit_denoiser, states_of

PARAMS = Krea2Params(
    width=64,
    heads=4,
    key_heads=2,
    mlp_width=192,
    blocks=5,  # with blocks_to_swap = 2, four take turns
    time_channels=32,
    text_states=len(LAYERS),
    text_width=WIDTH,
    text_heads=2,
    text_key_heads=2,
    text_mlp_width=64,
    text_blocks=1,
)
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "num_position_embeddings": 16,
    "out_hidden_size": WIDTH,
    "deepstack_visual_indexes": [0],
}


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a Krea 2, the tokenizer next to them, and captioned images."""
    tokenizer = qwen3_tokenizer()
    return miniature.write_miniature(CARD, folder, (tokenizer,), states_of(tiny_modules(len(tokenizer))))


@torch.no_grad()
def tiny_modules(vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call; the text encoder with its vision tower and a
    further layer."""
    language = tiny_config(vocabulary, LAYERS[-1] + 1, ROPE_THETA)
    encoder = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=language, vision_config=VISION))
    transformer, vae = Krea2Transformer(PARAMS), AutoencoderKLQwenImage(**AUTOENCODER)
    modules = {DENOISER: transformer, TEXT_ENCODER: encoder, VAE: vae}
    generator = draw_weights(modules)
    _weaken_conditioning(transformer)
    _fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _weaken_conditioning(transformer: Krea2Transformer) -> None:
    """Make tokens matter more than the vector of time, and each block add half of its output. Norms stay as they are
    initialized, with a scale of 1."""
    modulation: Any = transformer.tproj[1]
    modulation.weight.mul_(CONDITIONING)
    modulation.bias.view(2, 3, -1)[:, 2] = 0.5  # scale, shift, gate
    for module in transformer.modules():
        if isinstance(module, Table):
            module.lin.zero_()


def _fit(transformer: Krea2Transformer, latents: Tensor, generator: torch.Generator) -> None:
    blocks: Any = transformer.blocks
    outputs = [block.attn.wo.weight for block in blocks]
    grid = grid_of(latents)
    text = torch.zeros(len(latents), 8, PARAMS.text_states, PARAMS.text_width)

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(pack(noisy), text, times, grid)

    fit_denoiser(transformer.last.linear, outputs, latents, generator, run, shift=krea2_shift(math.prod(grid)))
