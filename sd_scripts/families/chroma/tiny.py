"""Chroma in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import nn
from transformers import T5EncoderModel

from sd_scripts.families.chroma.card import CARD
from sd_scripts.families.chroma.load import LAYOUTS, T5XXL
from sd_scripts.families.chroma.model import ChromaParams, ChromaTransformer
from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.flux.tiny import fit, t5_config
from sd_scripts.library.text.tokenizers import T5_ROWS
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    AUTOENCODER,
    CONDITIONING,
    T5_WIDTH,
    Miniature,
    calibrate,
    draw_weights,
    in_files,
    t5_tokenizer,
)

SHAPE = ChromaParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=T5_WIDTH,
    double_blocks=3,  # the fewest that can take turns, with blocks_to_swap = 2
    single_blocks=4,
    approximator_width=48,
    approximator_layers=2,
)


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a Chroma, the tokenizer next to them, and captioned images: a few MB, in seconds."""
    return miniature.write_miniature(CARD, folder, (t5_tokenizer(),), in_files(tiny_modules(), LAYOUTS))


@torch.no_grad()
def tiny_modules() -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call."""
    transformer = ChromaTransformer(SHAPE)
    vae = AutoencoderKL(latent_channels=16, **flux_vae.CONFIG, **AUTOENCODER)
    modules = {DENOISER: transformer, T5XXL: T5EncoderModel(t5_config(T5_ROWS)), VAE: vae}
    generator = draw_weights(modules)
    last = transformer.distilled_guidance_layer.out_proj
    last.weight.mul_(CONDITIONING)
    last.bias.fill_(0.5)  # each block adds half of its output
    fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules
