"""Image encoders of CLIP and SigLIP: layouts of files, sizes from shapes, and what CLIP sees."""

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.families.common.layouts import Layout, make_text_encoder
from sd_scripts.library.files.state_dicts import Shapes, State, count, renamed

CLIP = {
    "pre_norm": "pre_layrnorm",
    "post_norm": "post_layernorm",
    "patch_embedding": "embeddings.patch_embedding",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.proj": "self_attn.out_proj",
    "mlp.0": "mlp.fc1",
    "mlp.2": "mlp.fc2",
}
"""Official module of CLIP's image encoder, in a block or outside -> transformers'."""
CLIP_QKV = "attn.to_qkv."
CLIP_OFFICIAL, CLIP_TRANSFORMERS = "cls_embedding", "embeddings.class_embedding"
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CLIP_SIZES: dict[str, Any] = {"head_width": 80, "class_tokens": 1, "hidden_act": "gelu"}
"""Of ViT-H/14; shapes do not determine it."""


def vision_config(shapes: Shapes, head_width: int, *, class_tokens: int = 0, **more: Any) -> dict[str, Any]:
    """Return the arguments of transformers' CLIPVisionConfig or SiglipVisionConfig. `head_width`: shapes do not
    determine it; `class_tokens` have positions before the patches'. Raises KeyError if a needed key is missing."""
    width, _, patch, _ = shapes["embeddings.patch_embedding.weight"]
    side = math.isqrt(shapes["embeddings.position_embedding.weight"][0] - class_tokens)
    return {
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count(shapes, r"encoder\.layers\.\d+\.mlp\.fc1\.weight"),
        "num_attention_heads": max(1, width // head_width),
        "image_size": 384 if (side, patch) == (27, 14) else side * patch,  # six pixels are left over
        "patch_size": patch,
        **more,
    }


def clip_encoder(file: State) -> State:
    """Return CLIP's image encoder under transformers' keys, from these or from the official ones."""
    if CLIP_OFFICIAL not in file:
        return {key: tensor for key, tensor in file.items() if not key.endswith("position_ids")}
    state: State = {
        CLIP_TRANSFORMERS: file[CLIP_OFFICIAL].flatten(),
        "embeddings.position_embedding.weight": file["pos_embedding"][0],
    }
    for key, tensor in file.items():
        block = re.fullmatch(r"transformer\.(\d+)\.(.+)", key)
        place, inner = (f"encoder.layers.{block[1]}.", block[2]) if block else ("", key)
        if inner.startswith(CLIP_QKV):
            kind = inner.removeprefix(CLIP_QKV)
            names = (f"{place}self_attn.{name}_proj.{kind}" for name in "qkv")
            state |= dict(zip(names, tensor.chunk(3), strict=True))
        elif (name := renamed(inner, CLIP)) != inner:
            state[place + name] = tensor  # the others belong to the head, which is not read
    return state


CLIP_LAYOUT = Layout(
    make=lambda shapes: make_text_encoder("CLIPVisionModel", "CLIPVisionConfig", vision_config(shapes, **CLIP_SIZES)),
    unify=clip_encoder,
)


def clip_features(encoder: Any, image: Tensor) -> Tensor:
    """Return CLIP's features (B, 257, 1280) float32 of images (B, 3, H, W) in -1..1, squashed to squares: the states
    before its last layer."""
    weight = next(encoder.parameters())
    side = encoder.config.image_size
    square = F.interpolate(image.float(), (side, side), mode="bicubic", align_corners=False)
    mean, std = (torch.tensor(values, device=image.device).view(1, 3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    pixels = ((square / 2 + 0.5 - mean) / std).to(weight.device, weight.dtype)
    features: Tensor = encoder(pixels, output_hidden_states=True).hidden_states[-2]
    return features.float()


SIGLIP_SIZES: dict[str, Any] = {"head_width": 72, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
"""Of SigLIP so400m; shapes do not determine it."""
SIGLIP_LAYOUT = Layout(
    make=lambda shapes: make_text_encoder(
        "SiglipVisionModel", "SiglipVisionConfig", vision_config(shapes, **SIGLIP_SIZES)
    )
)


def siglip_pixels(encoder: Any, pixels: Tensor) -> Tensor:
    """Resize images (B, 3, H, W) in -1..1 to SigLIP's square, whatever their shape."""
    side = encoder.config.image_size
    return F.interpolate(pixels.float(), (side, side), mode="bicubic", antialias=True).clamp(-1, 1)


def siglip_states(encoder: Any, pixels: Tensor) -> Tensor:
    """Return SigLIP's last hidden states (B, 729, 1152) of pixels of its size."""
    weight = next(encoder.parameters())
    hidden: Tensor = encoder(pixels.to(weight.device, weight.dtype)).last_hidden_state
    return hidden


def no_siglip_states(encoder: Any, count: int) -> Tensor:
    """Return the states of no image, (B, 729, 1152): zeros."""
    tokens = (encoder.config.image_size // encoder.config.patch_size) ** 2
    return torch.zeros(count, tokens, encoder.config.hidden_size)
