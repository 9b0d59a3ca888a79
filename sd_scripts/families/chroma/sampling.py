"""Sample Chroma images."""

from functools import partial

from sd_scripts.families.chroma.objective import predict
from sd_scripts.families.common.flow_sampling import reading_together, sample_flow
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.flux.sampling import shifted_sigmas
from sd_scripts.families.flux.vae import decode_latents, encode_images

sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_latents,
    sigmas_of=shifted_sigmas,
    velocity_of=reading_together(predict),
)
sample = one_of(sample_batch)
