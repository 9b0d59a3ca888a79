"""What the miniatures of all families share: models of the real layout with tiny widths, and pictures to train on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTokenizer

from sd_scripts.data import drawn
from sd_scripts.library.clip_tokenizer import byte_letters, make_tokenizer


@dataclass(frozen=True, kw_only=True)
class Miniature:
    """Where a tiny model and its pictures are."""

    family: str
    files: dict[str, Path]
    """By the option that names each."""
    data_dir: Path

    @property
    def checkpoint(self) -> Path:
        return self.files["pretrained_model_name_or_path"]


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's kind of tokenizer, trained on the captions of the drawn pictures."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=byte_letters(), end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator(drawn.captions(), trainer)
    return make_tokenizer([(left, right) for left, right in json.loads(trained.to_str())["model"]["merges"]])


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
    """Weights that keep the variance of what passes through, no biases; norms as they are made."""
    for name, parameter in part.eval().named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


def pictures() -> Tensor:
    """The drawn ones, (12, 3, 128, 128) in -1..1."""
    drawings = [np.asarray(drawn.draw(caption, (128, 128)), np.float32) for caption in drawn.captions()]
    return torch.from_numpy(np.stack(drawings)).permute(0, 3, 1, 2) / 127.5 - 1


def least_squares(features: Tensor, wanted: Tensor) -> Tensor:
    """Features (N, F) and what they shall become (N, O) -> the weight (O, F) of a linear layer."""
    features, wanted = features.double(), wanted.double()
    square = features.T @ features
    damping = 1e-4 * square.trace() / len(square) * torch.eye(len(square))  # no large weights that cancel each other
    return torch.linalg.solve(square + damping, features.T @ wanted).T
