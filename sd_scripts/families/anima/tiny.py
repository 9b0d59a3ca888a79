"""Anima in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.anima.adapter import AdapterParams
from sd_scripts.families.anima.card import CARD
from sd_scripts.families.anima.load import TEXT_ENCODER
from sd_scripts.families.anima.model import AnimaParams, AnimaTransformer, Modulation
from sd_scripts.families.anima.text import T5_TOKENIZER
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.qwen3 import qwen3
from sd_scripts.families.common.encoders.tiny_causal_vae import AUTOENCODER, calibrate
from sd_scripts.families.common.encoders.tiny_qwen3 import WIDTH, qwen3_tokenizer, tiny_config
from sd_scripts.library.diffusion.dit_layers import pack, timestep_embedding
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.text.tokenizers import T5_ROWS
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    CONDITIONING,
    Miniature,
    draw_weights,
    fit_denoiser,
    input_of,
    states_of,
    t5_tokenizer,
)

PARAMS = AnimaParams(
    width=64,
    heads=2,
    mlp_width=256,
    modulation_width=16,
    text_width=48,
    blocks=5,  # with blocks_to_swap = 2, four take turns
    adapter=AdapterParams(words=T5_ROWS, width=48, states_width=WIDTH, heads=3, mlp_width=96, blocks=2),
)


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of an Anima, the tokenizers next to them, and captioned images: a few MB, in seconds."""
    tokenizer = qwen3_tokenizer()
    made = miniature.write_miniature(CARD, folder, (tokenizer,), states_of(tiny_modules(len(tokenizer))))
    t5_tokenizer().save_pretrained(folder / f"{made.checkpoint.stem}_tokenizers" / T5_TOKENIZER)
    return made


@torch.no_grad()
def tiny_modules(vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer, vae = AnimaTransformer(PARAMS), AutoencoderKLQwenImage(**AUTOENCODER)
    modules = {DENOISER: transformer, TEXT_ENCODER: qwen3(normed=True, **tiny_config(vocabulary, 2)), VAE: vae}
    generator = draw_weights(modules)
    _weaken_conditioning(transformer)
    _fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _weaken_conditioning(transformer: AnimaTransformer) -> None:
    """Make tokens matter more than the timestep, and each part of a block add about half of its output: modulations
    have no bias for that, so the gates of what all of them add read the mean of its inputs."""
    for module in transformer.modules():
        if isinstance(module, Modulation):
            linear: Any = module[2]
            linear.weight.mul_(CONDITIONING)
    embedder: Any = transformer.t_embedder[1]
    sinusoids = timestep_embedding(torch.linspace(0.05, 0.95, 16) / 1000, PARAMS.width)
    mean = input_of(embedder.linear_2, lambda: embedder(sinusoids)).mean(0)
    embedder.linear_2.weight.mul_(CONDITIONING)
    embedder.linear_2.weight.view(3, PARAMS.width, PARAMS.width)[2] = 0.5 * mean / mean.square().sum()


def _fit(transformer: AnimaTransformer, latents: Tensor, generator: torch.Generator) -> None:
    blocks: Any = transformer.blocks
    outputs = [part.output_proj.weight for block in blocks for part in (block.self_attn, block.cross_attn)]
    text = torch.zeros(len(latents), 8, PARAMS.text_width)

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(noisy, times, text)

    def tokens(latents: Tensor) -> Tensor:
        """Pack with the channels last, as the last layer's output has them."""
        return pack(latents).unflatten(-1, (PARAMS.channels, -1)).transpose(-1, -2).flatten(-2)

    fit_denoiser(transformer.final_layer.linear, outputs, latents, generator, run, tokens_of=tokens)
