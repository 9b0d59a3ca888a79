"""Sample Qwen-Image images."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.flow_sampling import ImageSample, Velocity, sample_flow
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.qwen_image.card.timesteps import qwen_shift
from sd_scripts.families.qwen_image.objective import predict
from sd_scripts.families.qwen_image.text import OUTPUTS
from sd_scripts.library.diffusion.dit_layers import PATCH, grid_of
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.options.compile import CompileOptions

LAST_SIGMA = 0.02
"""Where the last step begins."""
NOTHING = " "
"""The negative prompt that stands for none: the model was never shown an empty one."""


def velocity_of(sample: ImageSample) -> Velocity:
    images = len(sample.prompts)
    options = sample.settings[CompileOptions]
    captions = [
        {name: each.expand(images, *each.shape[1:]) for name, each in OUTPUTS.pad(caption, options).items()}
        for caption in OUTPUTS.each(sample.text, sample.device)
    ]
    predicted = partial(predict, sample.components.denoiser, controls=sample.controls_of(images))
    return guided_velocity(predicted, captions, sample.prompt.scale)


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_images,
    sigmas_of=lambda sample, noise: sampling_sigmas(sample.prompt.steps, math.prod(grid_of(noise))),
    velocity_of=velocity_of,
)
sample = one_of(sample_batch)
prompt_captions = partial(common_captions, unset=NOTHING)


def sampling_sigmas(steps: int, tokens: int) -> Tensor:
    """Return the sigmas from 1 to 0 for images of this many tokens, (steps + 1,), on the CPU: where each step begins
    and the last ends. They are shifted, then stretched so that the last step begins at LAST_SIGMA."""
    sigmas = shifted(torch.linspace(1, 1 / steps, steps, dtype=torch.float64), qwen_shift(tokens))
    if steps > 1:
        sigmas = 1 - (1 - sigmas) * (1 - LAST_SIGMA) / (1 - sigmas[-1])
    return torch.cat((sigmas, sigmas.new_zeros(1))).float()


def guided_velocity(
    predicted: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor], captions: list[dict[str, Tensor]], scale: float
) -> Velocity:
    """Return a function that predicts the velocity with guidance. `predicted`: noisy latents, timesteps, text -> the
    velocity; `captions`: the prompt, preceded by the negative one if there is guidance. They are read one at a time,
    since their lengths differ."""
    return lambda latents, t: guided([predicted(latents, t.expand(len(latents)), text) for text in captions], scale)


def guided(velocities: list[Tensor], scale: float) -> Tensor:
    """Combine the velocities (B, 16, h, w) for the negative prompt and the prompt; a single one is returned unchanged.
    Each token keeps the norm that it has for the prompt alone."""
    *negative, positive = velocities
    if not negative:
        return positive
    combined = negative[0] + scale * (positive - negative[0])
    return combined * (_token_norm(positive) / _token_norm(combined))


def _token_norm(latents: Tensor) -> Tensor:
    """Return the norm of the 64 values of each token, for each of its latents: (B, 1, h, w)."""
    squares = latents.square().sum(1, keepdim=True)
    norms = torch.nn.functional.avg_pool2d(squares, PATCH).mul(PATCH**2).sqrt()
    return norms.repeat_interleave(PATCH, -1).repeat_interleave(PATCH, -2)
