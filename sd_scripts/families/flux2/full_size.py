"""FLUX.2 klein 4B at full size, without weights."""

import torch
from torch import nn

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.flux2.load import TEXT_ENCODER
from sd_scripts.families.flux2.model import Flux2Params, Flux2Transformer
from sd_scripts.families.flux2.qwen3 import config_of, qwen3
from sd_scripts.families.flux2.text import LAYERS
from sd_scripts.families.flux2.vae import make_vae

WORDS, WIDTH, MLP_WIDTH, HEAD, QUERIES, KEYS = 151_936, 2_560, 9_728, 128, 4_096, 1_024
"""Sizes of Qwen3-4B."""


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (WORDS, WIDTH),
        "layers.0.self_attn.q_norm.weight": (HEAD,),
        "layers.0.self_attn.q_proj.weight": (QUERIES, WIDTH),
        "layers.0.self_attn.k_proj.weight": (KEYS, WIDTH),
    }
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (MLP_WIDTH, WIDTH) for number in range(LAYERS[-1])}
    with torch.device("meta"):
        return {
            DENOISER: Flux2Transformer(Flux2Params()),
            TEXT_ENCODER: qwen3(**config_of(shapes)),
            VAE: make_vae(),
        }
