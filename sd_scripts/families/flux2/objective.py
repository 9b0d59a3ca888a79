"""FLUX.2's training objective: flow matching, in which the model predicts the velocity from image to noise."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.common.objective import flow_inputs, velocity_loss
from sd_scripts.families.flux2.text import STATES
from sd_scripts.library.diffusion.dit_layers import Grid

step_inputs = partial(flow_inputs, count_tokens=lambda latents: math.prod(_grid(latents)))


def predict(
    transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor], controls: Sequence[Tensor] = ()
) -> Tensor:
    """Predict the velocity, noise - image, (B, 128, h, w) float32.

    noisy (B, 128, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, `controls`: latents of the
    control images, each (B, 128, h', w').
    """
    flux: Any = transformer
    images = (noisy, *controls)
    tokens = torch.cat([image.flatten(2).transpose(1, 2) for image in images], dim=1)
    grid, *others = (_grid(image) for image in images)
    velocity = flux(tokens, text[STATES], timesteps, grid, tuple(others))
    return velocity.transpose(1, 2).unflatten(-1, grid).float()


loss = velocity_loss(predict, controls=True)


def _grid(latents: Tensor) -> Grid:
    return latents.shape[-2], latents.shape[-1]
