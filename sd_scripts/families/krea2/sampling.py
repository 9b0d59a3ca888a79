"""Sample Krea 2 images."""

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor

from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow, velocity_of_captions
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.krea2.card.timesteps import krea2_shift
from sd_scripts.families.krea2.model import Krea2Transformer
from sd_scripts.families.krea2.objective import predict
from sd_scripts.families.krea2.text import OUTPUTS
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does."""
    prompt = prompts[0]
    transformer = cast(Krea2Transformer, components.denoiser)

    def velocity_of(_: list[Tensor]) -> Velocity:
        captions = (OUTPUTS.pad(each, settings[CompileOptions]) for each in OUTPUTS.each(text, transformer.device))
        return velocity_of_captions(partial(predict, transformer), captions, prompt.scale, len(prompts))

    return sample_flow(
        components,
        prompts,
        settings,
        encode=encode_images,
        decode=decode_images,
        sigmas_of=lambda noise: sampling_sigmas(
            prompt.steps, prompt.flow_shift or krea2_shift(math.prod(grid_of(noise)))
        ),
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
