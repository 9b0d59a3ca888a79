"""Sample Anima images."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.families.anima.model import AnimaTransformer
from sd_scripts.families.anima.objective import predict
from sd_scripts.families.anima.text import IDS
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.encoders.causal_vae import decode_images, encode_images
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, sample_flow
from sd_scripts.families.common.sampling import apply_guidance, one_of
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
    prompt, images = prompts[0], len(prompts)
    transformer = cast(AnimaTransformer, components.denoiser)

    def velocity_of(_: list[Tensor]) -> Velocity:
        given = {name: each.to(transformer.device).repeat_interleave(images, 0) for name, each in text.items()}

        def velocity(latents: Tensor, t: Tensor) -> Tensor:
            noisy = latents.repeat(len(given[IDS]) // images, 1, 1, 1)
            return apply_guidance(predict(transformer, noisy, t.expand(len(noisy)), given), prompt.scale, images)

        return velocity

    return sample_flow(
        components,
        prompts,
        card_of(settings.script.family),
        control_rules(settings.values().get),
        encode=encode_images,
        decode=decode_images,
        sigmas_of=lambda noise: sampling_sigmas(prompt.steps, prompt.flow_shift or SHIFT),
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
