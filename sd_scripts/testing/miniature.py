"""Shared parts of the families' miniatures: models of the real layout with tiny widths, and training images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTokenizer

from sd_scripts.library.text.tokenizers import make_clip_tokenizer
from sd_scripts.testing import demo_images

AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (32, 32, 64, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 1,
}
DISTURBANCE = 2.5
"""How strong attention is compared with what bypasses it."""


@dataclass(frozen=True, kw_only=True)
class Miniature:
    """Paths of a tiny model and its images."""

    family: str
    files: dict[str, Path]
    """Option -> the file it names."""
    data_dir: Path

    @property
    def checkpoint(self) -> Path:
        return self.files["pretrained_model_name_or_path"]


def caption_words() -> list[str]:
    """Return the words of the drawn images' captions. Vocabularies are made of them and not trained, because training
    breaks ties between equally frequent pieces differently in each process."""
    return sorted({word for caption in demo_images.captions() for word in caption.split()})


def clip_tokenizer() -> CLIPTokenizer:
    """Make a CLIP tokenizer that merges the letters of each caption word one by one."""
    merges: dict[tuple[str, str], None] = {}
    for word in caption_words():
        letters = [*word[:-1], word[-1] + "</w>"]
        merges |= dict.fromkeys(("".join(letters[:n]), letters[n]) for n in range(1, len(letters)))
    return make_clip_tokenizer(list(merges))


def clip_config(vocabulary: int, width: int, activation: str) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_attention_heads=width // 64,
        num_hidden_layers=3,
        hidden_act=activation,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


@torch.no_grad()
def randomize(part: Any, generator: torch.Generator) -> None:
    """Draw weights that preserve the variance of activations, zero biases, and keep norms as initialized."""
    for name, parameter in part.eval().named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


@torch.no_grad()
def calibrate(vae: Any) -> Tensor:
    """Give the latents of the drawn images mean 0, deviation 1 and a narrow distribution; return them, shifted and
    scaled."""
    pixels, shift, scale = images(), vae.config.shift_factor or 0.0, vae.config.scaling_factor
    moments = vae.encode(pixels).latent_dist.parameters
    channels = vae.config.latent_channels
    spread, middle = moments.std((0, 2, 3)), moments.mean((0, 2, 3))
    gain = 1 / (scale * spread)
    offset = torch.full_like(gain, shift)
    gain[channels:] = 1e-3
    offset[channels:] = -12.0  # logarithm of the variance
    conv = vae.quant_conv or vae.encoder.conv_out
    conv.weight.mul_(gain[:, None, None, None])
    conv.bias.copy_((conv.bias - middle) * gain + offset)
    return (vae.encode(pixels).latent_dist.mode() - shift) * scale


def images() -> Tensor:
    """Return the drawn images, (12, 3, 128, 128) in -1..1."""
    drawings = [np.asarray(demo_images.draw(caption, (128, 128)), np.float32) for caption in demo_images.captions()]
    return torch.from_numpy(np.stack(drawings)).permute(0, 3, 1, 2) / 127.5 - 1


def least_squares(features: Tensor, wanted: Tensor) -> Tensor:
    """Fit the weight (O, F) of a linear layer that maps features (N, F) to `wanted` (N, O)."""
    features, wanted = features.double(), wanted.double()
    square = features.T @ features
    damping = 1e-4 * square.trace() / len(square) * torch.eye(len(square))  # no large weights that cancel each other
    return torch.linalg.solve(square + damping, features.T @ wanted).T
