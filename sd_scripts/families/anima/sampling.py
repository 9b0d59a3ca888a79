"""Sample Anima images."""

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.anima.model import AnimaTransformer
from sd_scripts.families.anima.objective import predict
from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

SHIFT = 3.0
"""Of the timesteps, unless the prompt has one."""


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does. Both captions are read together."""
    prompt = prompts[0]
    transformer = cast(AnimaTransformer, components.denoiser)

    def velocity_of(_: list[Tensor]) -> Velocity:
        return velocity_of_batch(partial(predict, transformer), text, transformer.device, prompt.scale, len(prompts))

    return sample_flow(
        components,
        prompts,
        settings,
        encode=encode_images,
        decode=decode_images,
        sigmas_of=lambda noise: sampling_sigmas(prompt.steps, prompt.flow_shift or SHIFT),
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
