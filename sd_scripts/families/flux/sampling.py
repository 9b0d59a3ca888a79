"""Sample FLUX.1 images."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow
from sd_scripts.families.common.sampling import apply_guidance, one_of
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
    images = len(prompts)
    captions = len(text["t5_out"])
    flux = cast(FluxTransformer, components.denoiser)

    def sigmas_of(noise: Tensor) -> Tensor:
        rows, columns = grid_of(noise)
        return sampling_sigmas(prompt.steps, shift_of(rows * columns) if shifts else 1.0)

    def velocity_of(control_latents: list[Tensor]) -> Velocity:
        outputs = {name: each.to(flux.device).repeat_interleave(images, 0) for name, each in text.items()}
        controls = [each.expand(captions * images, -1, -1, -1) for each in control_latents]

        def velocity(latents: Tensor, t: Tensor) -> Tensor:
            noisy = latents.repeat(captions, 1, 1, 1)
            return apply_guidance(
                predicted(noisy, t.expand(captions * images), outputs, controls), prompt.scale, images
            )

        return velocity

    return sample_flow(
        components,
        prompts,
        card_of(settings.script.family),
        control_rules(settings.values().get),
        encode=encode_images,
        decode=decode_latents,
        sigmas_of=sigmas_of,
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
prompt_captions = partial(common_captions, unset=None)
