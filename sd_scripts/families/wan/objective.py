"""Wan's training objective: flow matching, in which the model predicts the velocity from clip to noise."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.encoders.umt5 import STATES
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions, flow_inputs, flow_loss
from sd_scripts.families.wan.conditions import CONDITION, CONTROL, FEATURES, START, input_channels


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    """Return the inputs of flow matching, and the conditions of a model that reads images."""
    conditions = {name: batch.conditioning[name] for name in (CONDITION, START, FEATURES) if name in batch.conditioning}
    on_device = {name: each.to(latents.device, torch.float32) for name, each in conditions.items()}
    return flow_inputs(batch, latents, options, generator, timesteps) | on_device


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each clip (B,) float32."""
    model = inputs.model
    conditions = {**model, CONTROL: inputs.controls[0]} if inputs.controls else model
    velocity = predict(components.denoiser, model["noisy"], model["timesteps"], inputs.text, conditions)
    return flow_loss(velocity, model, options)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    conditions: Mapping[str, Tensor],
    skipped: Collection[int] = (),
) -> Tensor:
    """Predict the velocity, noise - clip, (B, 16, f, h, w) float32.

    noisy (B, 16, f, h, w), timesteps (B,) float32 in 0..1, text as returned by pad_text, conditions as returned by
    conditions_of or start_conditions, with `control` for Fun-Control, without any for text to video, `skipped`: blocks
    to leave out.
    """
    latents = input_channels(noisy, conditions)
    velocity: Tensor = transformer(latents, text[STATES], timesteps, conditions.get(FEATURES), skipped)
    return velocity.to(torch.float32)
