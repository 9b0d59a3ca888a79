"""Sample Z-Image images."""

from functools import partial

from sd_scripts.families.common.encoders.flux_vae import decode_latents, encode_images
from sd_scripts.families.common.flow_sampling import reading_each, sample_flow
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.z_image.objective import predict
from sd_scripts.families.z_image.text import OUTPUTS
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.options.generating.prompt_lines import SamplePrompt

SHIFT, SHIFT_OF_TURBO = 6.0, 3.0
TURBO_STEPS = 12
"""Most steps that suit the distilled model."""


def sampling_shift(prompt: SamplePrompt) -> float:
    """Return the shift that the prompt sets, else the one with which a model for this many steps is published."""
    return prompt.flow_shift or (SHIFT if prompt.steps > TURBO_STEPS else SHIFT_OF_TURBO)


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_latents,
    sigmas_of=lambda sample, noise: sampling_sigmas(sample.prompt.steps, sampling_shift(sample.prompt)),
    velocity_of=reading_each(predict, OUTPUTS),
)
sample = one_of(sample_batch)
