"""HunyuanVideo at full size, without weights."""

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.encoders.llama import CLIP_NAME, LLM_NAME, SKIPPED_LAYERS, language_config
from sd_scripts.families.common.full_size import CLIP_L
from sd_scripts.families.hunyuan_video.model import HunyuanParams, HunyuanVideoTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLHunyuanVideo

ROWS, WIDTH, MLP_WIDTH, LAYERS, KEY_WIDTH = 128_320, 4_096, 14_336, 32, 1_024
"""Sizes of LLaVA-LLaMA-3-8B's language model: rows of its embedding, width, MLP, layers, width of keys and values."""


def modules() -> dict[str, nn.Module]:
    """Return the components on the meta device."""
    shapes = {"embed_tokens.weight": (ROWS, WIDTH), "layers.0.self_attn.k_proj.weight": (KEY_WIDTH, WIDTH)}
    read = range(LAYERS - SKIPPED_LAYERS)
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (MLP_WIDTH, WIDTH) for number in read}
    with torch.device("meta"):
        llama = LlamaModel(LlamaConfig(**language_config(shapes)))
        llama.norm = nn.Identity()  # type: ignore[assignment]
        return {
            DENOISER: HunyuanVideoTransformer(HunyuanParams()),
            LLM_NAME: llama,
            CLIP_NAME: CLIPTextModel(CLIPTextConfig(**CLIP_L)),
            VAE: AutoencoderKLHunyuanVideo(),
        }
