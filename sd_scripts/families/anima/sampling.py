"""Sample Anima images."""

from collections.abc import Sequence

from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.families.anima.objective import predict, text_rows
from sd_scripts.families.anima.vae import decode_latents, encode_images
from sd_scripts.families.cards.registry import card_of
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
    transformer = components.denoiser

    def velocity_of(_: list[Tensor]) -> Velocity:
        device = next(transformer.parameters()).device
        rows = text_rows(transformer, {name: each.to(device) for name, each in text.items()})
        captions = len(rows)
        rows = rows.repeat_interleave(images, 0)

        def velocity(latents: Tensor, t: Tensor) -> Tensor:
            predicted = predict(transformer, latents.repeat(captions, 1, 1, 1), t.expand(captions * images), rows)
            return apply_guidance(predicted, prompt.scale, images)

        return velocity

    return sample_flow(
        components,
        prompts,
        card_of(settings.script.family),
        control_rules(settings.values().get),
        encode=encode_images,
        decode=decode_latents,
        sigmas_of=lambda noise: sampling_sigmas(prompt.steps, prompt.flow_shift or SHIFT),
        velocity_of=velocity_of,
    )


sample = one_of(sample_batch)
