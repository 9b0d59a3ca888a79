"""Sample FLUX.2 images."""

import math
from functools import partial

from torch import Tensor

from sd_scripts.families.common.flow_sampling import ImageSample, Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.flux2.objective import predict
from sd_scripts.families.flux2.vae import CHANNELS, PIXELS, decode_latents, encode_images
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas

FEW, MANY = 10, 200
"""Steps that the two lines are for."""
OF_FEW, OF_MANY = (8.73809524e-5, 1.89833333), (1.6927e-4, 0.45666666)
"""Slope and offset of the logarithm of the shift, by the number of tokens."""
MOST_TOKENS = 4300
"""Above this many tokens the line of many steps is for any number of them."""


def sampling_shift(tokens: int, steps: int) -> float:
    """Return the shift for images of this many tokens and this many steps, as measured by Black Forest Labs: 7.56 for
    1024x1024 in 50 steps, 9.89 in 4."""
    few, many = (slope * tokens + offset for slope, offset in (OF_FEW, OF_MANY))
    if tokens > MOST_TOKENS:
        return math.exp(many)
    slope = (many - few) / (MANY - FEW)
    return math.exp(many + slope * (steps - MANY))


def velocity_of(sample: ImageSample) -> Velocity:
    """Return the function that predicts the velocity; both captions are read together."""

    def predicted(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        return predict(sample.components.denoiser, noisy, at, outputs, sample.controls_of(len(noisy)))

    return velocity_of_batch(predicted, sample)


def sigmas_of(sample: ImageSample, noise: Tensor) -> Tensor:
    steps, tokens = sample.prompt.steps, noise.shape[-2] * noise.shape[-1]
    return sampling_sigmas(steps, sampling_shift(tokens, steps))


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_latents,
    sigmas_of=sigmas_of,
    velocity_of=velocity_of,
    channels=CHANNELS,
    pixels=PIXELS,
)
sample = one_of(sample_batch)
