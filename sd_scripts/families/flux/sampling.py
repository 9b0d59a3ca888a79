"""Sample FLUX.1 images."""

from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.common.flow_sampling import ImageSample, Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.flux.objective import guidance_vector, predict
from sd_scripts.families.flux.vae import decode_latents, encode_images
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas


def velocity_of(sample: ImageSample) -> Velocity:
    """Return the function that predicts the velocity; both captions are read together."""
    masked = sample.settings[FluxModelOptions].apply_t5_attn_mask

    def predicted(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor]) -> Tensor:
        guidance = guidance_vector(sample.components, at, sample.prompt.guidance)
        controls = sample.controls_of(len(noisy))
        return predict(sample.components.denoiser, noisy, at, outputs, guidance, masked=masked, controls=controls)

    return velocity_of_batch(predicted, sample)


def sigmas_of(sample: ImageSample, noise: Tensor) -> Tensor:
    """Return the sigmas of the steps; schnell was distilled with uniform ones."""
    flux = cast(FluxTransformer, sample.components.denoiser)
    return shifted_sigmas(sample, noise) if flux.shape.guidance else sampling_sigmas(sample.prompt.steps, 1.0)


def shifted_sigmas(sample: ImageSample, noise: Tensor) -> Tensor:
    """Return sigmas with more steps at high noise for larger images."""
    rows, columns = grid_of(noise)
    return sampling_sigmas(sample.prompt.steps, shift_of(rows * columns))


sample_batch = partial(
    sample_flow,
    encode=encode_images,
    decode=decode_latents,
    sigmas_of=sigmas_of,
    velocity_of=velocity_of,
)
sample = one_of(sample_batch)
prompt_captions = partial(common_captions, unset=None)
