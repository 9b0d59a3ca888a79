"""Krea 2's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from functools import partial

import torch
from torch import Tensor, nn

from sd_scripts.families.common.objective import flow_inputs, velocity_loss
from sd_scripts.families.krea2.card.timesteps import krea2_shift
from sd_scripts.families.krea2.text import MASK, STATES
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack
from sd_scripts.library.diffusion.flow_timesteps import draw_sigmas, shifted
from sd_scripts.library.diffusion.noise import normal
from sd_scripts.options.optimization.flow import FlowOptions


def draw_timesteps(count: int, options: FlowOptions, tokens: int, generator: torch.Generator) -> Tensor:
    """Draw timesteps (B,) for images of this many tokens, by timestep_sampling."""
    match options.timestep_sampling:
        case "krea2_shift":
            return shifted(torch.sigmoid(options.sigmoid_scale * normal((count,), generator)), krea2_shift(tokens))
    return draw_sigmas(count, options, tokens, generator)


step_inputs = partial(flow_inputs, draw=draw_timesteps)


def predict(transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor]) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, without a mask if nothing
    is padded.
    """
    grid = grid_of(noisy)
    velocity = transformer(pack(noisy), text[STATES], timesteps, grid, text.get(MASK))
    return unpack(velocity, grid).float()


loss = velocity_loss(predict)
