"""Anima's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.data.batch import Batch
from sd_scripts.families.anima.text import IDS, IDS_MASK, MASK, STATES
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import flow_inputs, flow_loss
from sd_scripts.settings.settings import Settings


def step_inputs(
    batch: Batch, latents: Tensor, settings: Settings, generator: torch.Generator, timesteps: Tensor | None = None
) -> dict[str, Tensor]:
    """Return flow_inputs."""
    return flow_inputs(batch, latents, settings, generator, timesteps)


def loss(components: Components, inputs: StepInputs, settings: Settings) -> Tensor:
    """Return the loss of each image (B,) float32."""
    model = inputs.model
    text = text_rows(components.denoiser, inputs.text)
    return flow_loss(predict(components.denoiser, model["noisy"], model["timesteps"], text), model, settings)


def text_rows(transformer: nn.Module, text: dict[str, Tensor]) -> Tensor:
    """Return the text that the transformer reads, (B, 512, 1024), from what encode_text returns."""
    anima: Any = transformer
    rows: Tensor = anima.text_rows(*(text[name] for name in (STATES, MASK, IDS, IDS_MASK)))
    return rows


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: Tensor) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by text_rows.
    """
    velocity: Tensor = transformer(noisy, text, timesteps)
    return velocity.float()
