"""Qwen-Image at full size, without weights."""

import torch
from torch import nn
from transformers import Qwen2_5_VLTextModel
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.qwen_image import keys
from sd_scripts.families.qwen_image.model import QwenImageParams, QwenImageTransformer
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage

WORDS, WIDTH, MLP_WIDTH, LAYERS, KEY_WIDTH = 152_064, 3_584, 18_944, 28, 512
"""Sizes of Qwen2.5-VL-7B's language model: rows of its embedding, width, MLP, layers, width of keys and values."""


def modules(layers: int = LAYERS) -> dict[str, nn.Module]:
    """Return the components on the meta device, with this many layers of the text encoder's language model."""
    shapes = {"embed_tokens.weight": (WORDS, WIDTH), "layers.0.self_attn.k_proj.weight": (KEY_WIDTH, WIDTH)}
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (MLP_WIDTH, WIDTH) for number in range(layers)}
    with torch.device("meta"):
        return {
            DENOISER: QwenImageTransformer(QwenImageParams()),
            "text_encoder1": Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**keys.language_config(shapes))),
            VAE: AutoencoderKLQwenImage(),
        }
