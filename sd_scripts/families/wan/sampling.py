"""Sample Wan's clips and images."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, solver_steps
from sd_scripts.families.common.sampling import apply_guidance, eval_mode, length_of, make_generator, on_device
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.wan.card.options import WanModelOptions, WanSamplingOptions
from sd_scripts.families.wan.card.tasks import NEGATIVE, task_of
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.families.wan.objective import predict
from sd_scripts.families.wan.text import MASK, pad_text
from sd_scripts.families.wan.vae import LATENTS, decode_latents
from sd_scripts.library.diffusion.flow_solvers import make_solver
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

prompt_captions = partial(common_captions, unset=NEGATIVE)


@torch.no_grad()
def sample(components: Components, prompt: SamplePrompt, text: dict[str, Tensor], settings: Settings) -> Media:
    """Generate a clip, or an image, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device. A seed gives the same
    noise on every device.
    """
    card = card_of(settings.script.family)
    transformer = cast(WanTransformer, components.denoiser)
    height, width = size_of(prompt, card.side_multiple)
    frames, fps = length_of(prompt, card, settings)
    device = transformer.device

    def decoded(latents: Tensor) -> Tensor:
        with on_device(components.vae, device):
            return decode_latents(components, latents)[0]

    with eval_mode([transformer, components.vae]):
        shape = (1, *LATENTS.shape(Extent(width, height, frames)))
        noise = torch.randn(shape, generator=make_generator(prompt.seed)).to(device)
        shift = prompt.flow_shift or task_of(settings[WanModelOptions].task).shift
        latents = solver_steps(
            noise,
            make_solver(settings[WanSamplingOptions].sample_solver, prompt.steps, shift),
            guided_velocity(transformer, captions_of(text, device, settings[CompileOptions]), prompt.scale),
            lambda so_far: decoded(so_far[:, :, :1]),
        )
        return Media.of(decoded(latents), fps)


def captions_of(text: dict[str, Tensor], device: torch.device, options: CompileOptions) -> list[dict[str, Tensor]]:
    """Split the outputs of several captions, (B, T, ...), into batches of one at the length that the model reads."""
    return [
        pad_text({name: each[number : number + 1].to(device) for name, each in text.items()}, options)
        for number in range(len(text[MASK]))
    ]


def guided_velocity(transformer: WanTransformer, captions: Sequence[dict[str, Tensor]], scale: float) -> Velocity:
    """Return a function that predicts the velocity with guidance. `captions`: the prompt, preceded by the negative one
    if there is guidance; they are read one at a time, which takes half of the memory."""

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        each = [predict(transformer, latents, t.expand(len(latents)), caption) for caption in captions]
        return apply_guidance(torch.cat(each), scale)

    return velocity
