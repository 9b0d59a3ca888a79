"""Sample Krea 2 images."""

import math
from functools import partial

from torch import Tensor

from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.flow_sampling import ImageSample, reading_each, sample_flow
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.krea2.card.timesteps import krea2_shift
from sd_scripts.families.krea2.objective import predict
from sd_scripts.families.krea2.text import OUTPUTS
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas


def sigmas_of(sample: ImageSample, noise: Tensor) -> Tensor:
    shift = sample.prompt.flow_shift or krea2_shift(math.prod(grid_of(noise)))
    return sampling_sigmas(sample.prompt.steps, shift)


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_images,
    sigmas_of=sigmas_of,
    velocity_of=reading_each(predict, OUTPUTS),
)
sample = one_of(sample_batch)
