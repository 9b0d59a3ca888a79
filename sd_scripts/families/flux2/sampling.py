"""Sample FLUX.2 images."""

import math
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow, velocity_of_batch
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.flux2.model import Flux2Transformer
from sd_scripts.families.flux2.objective import predict
from sd_scripts.families.flux2.vae import CHANNELS, PIXELS, decode_latents, encode_images
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

FEW, MANY = 10, 200
"""Steps that the two lines are for."""
OF_FEW, OF_MANY = (8.73809524e-5, 1.89833333), (1.6927e-4, 0.45666666)
"""Slope and offset of the logarithm of the shift, by the number of tokens."""
MOST_TOKENS = 4300
"""Above this many tokens the line of many steps is for any number of them."""


def sampling_shift(tokens: int, steps: int) -> float:
    """Return the shift for images of this many tokens and this many steps, as measured by Black Forest Labs: 7.56 for
    1024x1024 in 50 steps, 9.89 in 4."""
    few, many = (slope * tokens + offset for slope, offset in (OF_FEW, OF_MANY))
    if tokens > MOST_TOKENS:
        return math.exp(many)
    slope = (many - few) / (MANY - FEW)
    return math.exp(many + slope * (steps - MANY))


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does. Both captions are read together."""
    prompt = prompts[0]
    transformer = cast(Flux2Transformer, components.denoiser)

    def velocity_of(controls: list[Tensor]) -> Velocity:
        def predicted(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor]) -> Tensor:
            return predict(transformer, noisy, at, outputs, [each.expand(len(noisy), -1, -1, -1) for each in controls])

        return velocity_of_batch(predicted, text, transformer.device, prompt.scale, len(prompts))

    return sample_flow(
        components,
        prompts,
        settings,
        encode=encode_images,
        decode=decode_latents,
        sigmas_of=lambda noise: sampling_sigmas(
            prompt.steps, sampling_shift(noise.shape[-2] * noise.shape[-1], prompt.steps)
        ),
        velocity_of=velocity_of,
        channels=CHANNELS,
        pixels=PIXELS,
    )


sample = one_of(sample_batch)
