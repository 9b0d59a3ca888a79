"""Sample Chroma images."""

from functools import partial

from sd_scripts.families.chroma.objective import predict
from sd_scripts.families.common.flow_sampling import ImageSample, Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.flux.sampling import shifted_sigmas
from sd_scripts.families.flux.vae import decode_latents, encode_images


def velocity_of(sample: ImageSample) -> Velocity:
    """Return the function that predicts the velocity; both captions are read together."""
    return velocity_of_batch(partial(predict, sample.components.denoiser), sample)


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_latents,
    sigmas_of=shifted_sigmas,
    velocity_of=velocity_of,
)
sample = one_of(sample_batch)
