"""Qwen-Image in miniature: files of the real layout with tiny widths and random weights, for the demo and for tests."""

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.tiny_causal_vae import AUTOENCODER, calibrate
from sd_scripts.families.qwen_image import keys
from sd_scripts.families.qwen_image.card import CARD
from sd_scripts.families.qwen_image.card.timesteps import qwen_shift
from sd_scripts.families.qwen_image.model import Modulation, QwenImageParams, QwenImageTransformer
from sd_scripts.families.qwen_image.text import TEMPLATE
from sd_scripts.library.diffusion.dit_layers import grid_of, pack
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.text.tokenizers import make_qwen_tokenizer
from sd_scripts.testing import miniature
from sd_scripts.testing.miniature import (
    Miniature,
    caption_words,
    draw_weights,
    fit_denoiser,
    letter_merges,
    states_of,
    weaken_conditioning,
)

TEXT_WIDTH = keys.HEAD_WIDTH
"""Of an encoder with one head."""
PARAMS = QwenImageParams(
    width=64,
    heads=2,
    mlp_width=256,
    text_width=TEXT_WIDTH,
    blocks=5,  # with blocks_to_swap = 2, four take turns
)
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": TEXT_WIDTH,
    "fullatt_block_indexes": [0],
}


def write_miniature(folder: Path) -> Miniature:
    """Create the three files of a Qwen-Image, the tokenizer next to them, and captioned images: a few MB, in
    seconds."""
    tokenizer = qwen_tokenizer()
    return miniature.write_miniature(CARD, folder, (tokenizer,), states_of(tiny_modules(len(tokenizer))))


def qwen_tokenizer() -> Qwen2Tokenizer:
    """Make a byte-level tokenizer like Qwen's that merges the letters of each word of captions and of the text around
    them one by one."""
    around = sorted(set(re.findall(r"[a-zA-Z]+", TEMPLATE.around(""))))
    return make_qwen_tokenizer(letter_merges((*caption_words(), *around)))


@torch.no_grad()
def tiny_modules(vocabulary: int) -> dict[str, nn.Module]:
    """Return all components with random weights, the same at every call; the text encoder with its vision tower."""
    config = Qwen2_5_VLConfig(text_config=_language(vocabulary), vision_config=VISION)
    transformer, vae = QwenImageTransformer(PARAMS), AutoencoderKLQwenImage(**AUTOENCODER)
    encoder = Qwen2_5_VLForConditionalGeneration(config)
    modules = {DENOISER: transformer, "text_encoder1": encoder, VAE: vae}
    generator = draw_weights(modules)
    modulations: Any = [module[1] for module in transformer.modules() if isinstance(module, Modulation)]
    weaken_conditioning(modulations, transformer.norm_out.linear)
    _fit(transformer, calibrate(vae).repeat(4, 1, 1, 1), generator)
    return modules


def _language(vocabulary: int) -> dict[str, Any]:
    shapes = {
        "embed_tokens.weight": (vocabulary, TEXT_WIDTH),
        "layers.0.mlp.gate_proj.weight": (2 * TEXT_WIDTH, TEXT_WIDTH),
        "layers.1.mlp.gate_proj.weight": (2 * TEXT_WIDTH, TEXT_WIDTH),
        "layers.0.self_attn.k_proj.weight": (keys.HEAD_WIDTH, TEXT_WIDTH),
    }
    return keys.language_config(shapes)


def _fit(transformer: QwenImageTransformer, latents: Tensor, generator: torch.Generator) -> None:
    blocks: Any = transformer.transformer_blocks
    outputs = [block.attn.to_out[0].weight for block in blocks]
    grid = grid_of(latents)
    text = torch.zeros(len(latents), 8, TEXT_WIDTH)

    def run(noisy: Tensor, times: Tensor) -> object:
        return transformer(pack(noisy), text, times, grid)

    fit_denoiser(transformer.proj_out, outputs, latents, generator, run, shift=qwen_shift(math.prod(grid)))
