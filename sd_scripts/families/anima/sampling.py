"""Sample Anima images."""

from functools import partial

from sd_scripts.families.anima.objective import predict
from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.flow_sampling import reading_together, sample_flow
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas

SHIFT = 3.0
"""Of the timesteps, unless the prompt has one."""


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_images,
    sigmas_of=lambda sample, noise: sampling_sigmas(sample.prompt.steps, sample.prompt.flow_shift or SHIFT),
    velocity_of=reading_together(predict),
)
sample = one_of(sample_batch)
