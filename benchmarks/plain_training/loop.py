"""What all families share: the LoRA, its optimizer and the loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers.optimization import get_scheduler
from peft import LoraConfig, get_peft_model_state_dict
from torch import Tensor, nn

WEIGHT_DECAY = 0.01
"""AdamW's default, which the demo has."""
Options = Mapping[str, Any]
"""The demo's options."""


class PlainTraining(ABC):
    """A miniature in diffusers' layout, and a LoRA of it."""

    script: str
    """The name of diffusers' training script for this family."""
    denoiser: Any

    @staticmethod
    @abstractmethod
    def write_model(folder: Path, options: Options) -> None:
        """Write the miniature in diffusers' layout."""

    @abstractmethod
    def __init__(self, model: Path, options: Options):
        """Load the model that `write_model` wrote."""

    @abstractmethod
    def layers(self) -> list[str]:
        """Return the names of the layers that our LoRA adapts."""

    @abstractmethod
    def script_with(self, source: str, layers: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Return the source of diffusers' script and options with which it adapts these layers."""

    @abstractmethod
    def script_options(self) -> dict[str, Any]:
        """Return the options of diffusers' script that other families' do not have."""

    @abstractmethod
    def encode(self, captions: Sequence[str], pixels: Tensor) -> None:
        """Encode the images that are trained on; pixels (N, 3, H, W) in -1..1."""

    @abstractmethod
    def loss(self, chosen: Tensor) -> Tensor:
        """Return the mean loss of the images with these numbers, (B,) int64."""

    @abstractmethod
    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write a LoRA in peft's names."""


def linear_layers(denoiser: nn.Module, part: str) -> list[str]:
    """Return the names of all linear layers that contain `part`."""
    linear = [name for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linear if part in name]


def train_plainly(
    training: PlainTraining, captions: Sequence[str], pixels: Tensor, output: Path, options: Options
) -> list[float]:
    """Train a LoRA, which `output` gets; return the loss of each step."""
    torch.manual_seed(options["seed"])
    denoiser = training.denoiser.requires_grad_(False)
    with torch.no_grad():
        training.encode(captions, pixels)
    rank, steps = options["network_dim"], options["max_train_steps"]
    denoiser.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=training.layers()))
    parameters = [parameter for parameter in denoiser.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, options["learning_rate"], weight_decay=WEIGHT_DECAY)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=0, num_training_steps=steps)
    losses: list[float] = []
    while len(losses) < steps:
        for chosen in torch.randperm(len(captions)).split(options["train_batch_size"]):
            loss = training.loss(chosen)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    training.save(output, get_peft_model_state_dict(denoiser))
    return losses[:steps]
