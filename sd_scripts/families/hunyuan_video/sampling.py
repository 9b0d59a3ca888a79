"""Sample HunyuanVideo clips and images."""

from functools import partial
from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.common.encoders.hunyuan_vae import decode_latents, encode_images, latent_shape
from sd_scripts.families.common.encoders.llama import OUTPUTS, pad_text
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.flow_sampling import Velocity, euler_steps
from sd_scripts.families.common.sampling import (
    apply_guidance,
    eval_mode,
    frame_of,
    length_of,
    make_generator,
    on_device,
)
from sd_scripts.families.common.sampling import prompt_captions as common_captions
from sd_scripts.families.hunyuan_video.card import CARD
from sd_scripts.families.hunyuan_video.model import HunyuanVideoTransformer
from sd_scripts.families.hunyuan_video.objective import predict, reads_start
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

SHIFT, SHIFT_OF_FEW, FEW = 7.0, 17.0, 20
"""Shift of the timesteps, and the one for fewer steps than FEW."""
PREVIEWED = 2
"""Latent frames that a preview decodes."""

prompt_captions = partial(common_captions, unset=None)


@torch.no_grad()
def sample(components: Components, prompt: SamplePrompt, text: dict[str, Tensor], settings: Settings) -> Media:
    """Generate a clip, or an image, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device. A seed gives the same
    noise on every device.
    """
    transformer = cast(HunyuanVideoTransformer, components.denoiser)
    height, width = size_of(prompt, CARD.side_multiple)
    frames, fps = length_of(prompt, CARD, settings)
    device = transformer.device

    def decoded(latents: Tensor) -> Tensor:
        with on_device(components.vae, device):
            return decode_latents(components, latents)[0]

    with eval_mode([transformer, components.vae]):
        shape = (1, *latent_shape(Extent(width, height, frames)))
        noise = torch.randn(shape, generator=make_generator(prompt.seed)).to(device)
        shift = prompt.flow_shift or (SHIFT if prompt.steps >= FEW else SHIFT_OF_FEW)
        start = _start_of(components, prompt, (width, height), settings)
        captions = [pad_text(each, settings[CompileOptions]) for each in OUTPUTS.each(text, device)]
        latents = euler_steps(
            noise,
            sampling_sigmas(prompt.steps, shift),
            guided_velocity(transformer, captions, prompt, start),
            lambda so_far: decoded(so_far[:, :, :PREVIEWED]),
        )
        return Media.of(decoded(latents), fps)


def _start_of(components: Components, prompt: SamplePrompt, size: tuple[int, int], settings: Settings) -> Tensor | None:
    """Return the latents (1, 16, 1, h, w) of the prompt's start image if the model reads them. Raises ValueError if it
    does and there is none."""
    if not reads_start(components.denoiser):
        return None
    if not prompt.start_image:
        raise ValueError("image_path: SkyReels-V1 I2V makes clips from an image; name one with --i in the prompt")
    device = cast(HunyuanVideoTransformer, components.denoiser).device
    with on_device(components.vae, device):
        return encode_images(components, frame_of(prompt.start_image, size, settings))


def guided_velocity(
    transformer: HunyuanVideoTransformer,
    captions: list[dict[str, Tensor]],
    prompt: SamplePrompt,
    start: Tensor | None = None,
) -> Velocity:
    """Return a function that predicts the velocity. `captions`: the prompt, preceded by the negative one if there is
    classifier-free guidance; they are read one at a time, since their lengths differ. `start`: as in predict."""

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        each = [predict(transformer, latents, t.expand(1), caption, prompt.guidance, start) for caption in captions]
        return apply_guidance(torch.cat(each), prompt.scale)

    return velocity
