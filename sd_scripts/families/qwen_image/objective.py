"""Qwen-Image's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sd_scripts.families.common.objective import flow_inputs, velocity_loss
from sd_scripts.families.qwen_image.card.timesteps import RARE, RARE_MEAN, qwen_shift
from sd_scripts.families.qwen_image.text import MASK, STATES
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack
from sd_scripts.library.diffusion.flow_timesteps import draw_sigmas, shifted
from sd_scripts.library.diffusion.noise import normal
from sd_scripts.options.optimization.flow import FlowOptions


def draw_timesteps(count: int, options: FlowOptions, tokens: int, generator: torch.Generator) -> Tensor:
    """Draw timesteps (B,) for images of this many tokens, by timestep_sampling."""
    match options.timestep_sampling:
        case "qwen_shift":
            return _shifted_by_size(count, options, tokens, generator)
        case "logsnr":
            return _by_signal_to_noise(count, options.logit_mean, options.logit_std, generator)
        case "qinglong_qwen":
            usual = _shifted_by_size(count, options, tokens, generator)
            clear = _by_signal_to_noise(count, RARE_MEAN, 1.0, generator)
            rare = torch.rand(count, generator=generator, device=generator.device) < RARE
            return torch.where(rare, clear, usual)
    return draw_sigmas(count, options, tokens, generator)


def _shifted_by_size(count: int, options: FlowOptions, tokens: int, generator: torch.Generator) -> Tensor:
    return shifted(torch.sigmoid(options.sigmoid_scale * normal((count,), generator)), qwen_shift(tokens))


def _by_signal_to_noise(count: int, mean: float, std: float, generator: torch.Generator) -> Tensor:
    """Draw timesteps whose logarithm of the signal-to-noise ratio is normal: ((1 - t) / t)^2 = exp(x)."""
    return torch.sigmoid(-(mean + std * normal((count,), generator)) / 2)


step_inputs = partial(flow_inputs, draw=draw_timesteps)


def predict(
    transformer: nn.Module, noisy: Tensor, timesteps: Tensor, text: dict[str, Tensor], controls: Sequence[Tensor] = ()
) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, without a mask if nothing
    is padded, `controls`: latents of the control images, each (B, 16, h', w').
    """
    images = (noisy, *controls)
    tokens = torch.cat([pack(image) for image in images], dim=1)
    grid, *others = (grid_of(image) for image in images)
    velocity = transformer(tokens, text[STATES], timesteps, grid, text.get(MASK), tuple(others))
    return unpack(velocity, grid).float()


loss = velocity_loss(predict, controls=True)
