"""Sample FLUX.1 images."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.families.flux.model import FluxTransformer
from sd_scripts.families.flux.objective import guidance_vector, predict
from sd_scripts.families.flux.vae import decode_latents, encode_images
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

Predict = Callable[[Tensor, Tensor, dict[str, Tensor], list[Tensor]], Tensor]
"""Noisy latents (B, 16, h, w), timesteps (B,), text outputs of B captions, latents of the control images -> the
velocity."""


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does. Both captions are read together."""
    flux = cast(FluxTransformer, components.denoiser)
    masked = settings[FluxModelOptions].apply_t5_attn_mask

    def predicted(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor], controls: list[Tensor]) -> Tensor:
        guidance = guidance_vector(components, at, prompts[0].guidance)
        return predict(flux, noisy, at, outputs, guidance, masked=masked, controls=controls)

    # schnell was distilled with uniform steps
    return sample_predictions(components, prompts, text, settings, predicted, shifts=flux.shape.guidance)


def sample_predictions(
    components: Components,
    prompts: Sequence[SamplePrompt],
    text: dict[str, Tensor],
    settings: Settings,
    predicted: Predict,
    *,
    shifts: bool,
) -> list[Media]:
    """Generate images of what a transformer predicts; `shifts`: more steps at high noise for larger images."""
    prompt = prompts[0]
    flux = cast(FluxTransformer, components.denoiser)

    def sigmas_of(noise: Tensor) -> Tensor:
        rows, columns = grid_of(noise)
        return sampling_sigmas(prompt.steps, shift_of(rows * columns) if shifts else 1.0)

    def velocity_of(controls: list[Tensor]) -> Velocity:
        def predict_all(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor]) -> Tensor:
            return predicted(noisy, at, outputs, [each.expand(len(noisy), -1, -1, -1) for each in controls])

        return velocity_of_batch(predict_all, text, flux.device, prompt.scale, len(prompts))

    return sample_flow(
        components,
        prompts,
        settings,
        encode=encode_images,
        decode=decode_latents,
        sigmas_of=sigmas_of,
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
prompt_captions = partial(common_captions, unset=None)
