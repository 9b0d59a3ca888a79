"""Sample Z-Image images."""

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.common.encoders.flux_vae import decode_latents, encode_images
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow, velocity_of_captions
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.z_image.model import ZImageTransformer
from sd_scripts.families.z_image.objective import predict
from sd_scripts.families.z_image.text import OUTPUTS
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

SHIFT, SHIFT_OF_TURBO = 6.0, 3.0
TURBO_STEPS = 12
"""Most steps that suit the distilled model."""


def sampling_shift(prompt: SamplePrompt) -> float:
    """Return the shift that the prompt sets, else the one with which a model for this many steps is published."""
    return prompt.flow_shift or (SHIFT if prompt.steps > TURBO_STEPS else SHIFT_OF_TURBO)


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does."""
    prompt = prompts[0]
    transformer = cast(ZImageTransformer, components.denoiser)

    def velocity_of(_: list[Tensor]) -> Velocity:
        captions = (OUTPUTS.pad(each, settings[CompileOptions]) for each in OUTPUTS.each(text, transformer.device))
        return velocity_of_captions(partial(predict, transformer), captions, prompt.scale, len(prompts))

    return sample_flow(
        components,
        prompts,
        settings,
        encode=encode_images,
        decode=decode_latents,
        sigmas_of=lambda noise: sampling_sigmas(prompt.steps, sampling_shift(prompt)),
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
