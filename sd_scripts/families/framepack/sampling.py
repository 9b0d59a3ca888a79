"""Sample FramePack clips section by section, and images as single frames."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.common.encoders.hunyuan_vae import decode_latents, encode_images, latent_shape
from sd_scripts.families.common.encoders.llama import MASK, pad_text
from sd_scripts.families.common.encoders.vision import no_siglip_states
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.sampling import (
    apply_guidance,
    eval_mode,
    frame_of,
    length_of,
    make_generator,
    offer_preview,
    on_device,
)
from sd_scripts.families.framepack.card import CARD
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.model import FramePackTransformer, Known
from sd_scripts.families.framepack.objective import predict
from sd_scripts.families.framepack.sections import (
    WINDOW,
    count_sections,
    section_of,
    single_frame,
    with_controls,
)
from sd_scripts.families.framepack.solver import unipc
from sd_scripts.families.framepack.text import IMAGE, OUTPUTS, SIGLIP
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

MOST_SHIFT = 7.0
PREVIEWED = 2
"""Latent frames that a preview decodes."""
OneSection = Callable[[Tensor, Tensor, list[Known]], Tensor]
"""Noise of a section, its places and what it sees -> its latents."""


@torch.no_grad()
def sample(components: Components, prompt: SamplePrompt, text: dict[str, Tensor], settings: Settings) -> Media:
    """Generate a clip that begins with the prompt's start image, or an image, with the current model and its LoRA.

    Without a start image the clip begins with a grey one. The denoiser is not moved, since its blocks may be swapped;
    the VAE is moved to its device. A seed gives the same noise on every device.
    """
    transformer = cast(FramePackTransformer, components.denoiser)
    height, width = size_of(prompt, CARD.side_multiple)
    frames, fps = length_of(prompt, CARD, settings)
    device = transformer.device
    shape = latent_shape(Extent(width, height, frames))
    generator = make_generator(prompt.seed)
    captions = _captions(components, text, device, settings[CompileOptions])

    def decoded(latents: Tensor) -> Tensor:
        with on_device(components.vae, device):
            return decode_latents(components, latents)[0]

    def generate(places: Tensor, known: list[Known], latent_frames: int) -> Tensor:
        noise = torch.randn((1, shape[0], latent_frames, *shape[2:]), generator=generator).to(device)
        shift = prompt.flow_shift or min(shift_of(noise[0, 0].numel() // 4), MOST_SHIFT)

        def sample_at(latents: Tensor, sigma: float) -> Tensor:
            t = torch.full((1,), sigma, device=device)
            each = [predict(transformer, latents, places, known, t, one, prompt.guidance) for one in captions]
            found = latents - sigma * apply_guidance(torch.cat(each), prompt.scale)
            offer_preview(lambda: decoded(found[:, :, :PREVIEWED]))
            return found

        return unipc(noise, sampling_sigmas(prompt.steps, shift).tolist(), sample_at)

    with eval_mode([transformer, components.vae]):
        options = settings[FramePackOptions]
        names = (prompt.start_image,) if prompt.start_image else prompt.control_images
        with on_device(components.vae, device):
            frames_of = (frame_of(name, (width, height), settings) for name in names)
            images = [encode_images(components, each) for each in frames_of]
        if frames == 1:
            section = single_frame(options, device)
            _, known = section.split(torch.zeros((1, *shape), device=device))
            latents = generate(section.places, with_controls(known, images, options.clean_places), 1)
        else:
            start = images[0] if images else _grey(components, (width, height), device)
            latents = _clip(start, count_sections(shape[1]), generate, f1=options.f1)
        return Media.of(decoded(latents), fps)


def _clip(start: Tensor, sections: int, generate: Callable[[Tensor, list[Known], int], Tensor], *, f1: bool) -> Tensor:
    """Return the latents (1, 16, 1 + 9n, h, w) of a clip with this start image (1, 16, 1, h, w). Sections are put into
    their places in it as they come: what does not exist yet is seen as zeros."""
    clip = start.new_zeros((*start.shape[:2], 1 + WINDOW * sections, *start.shape[3:]))
    clip[:, :, :1] = start
    for number in range(sections) if f1 else reversed(range(sections)):
        section = section_of(number, sections, start.device, f1=f1)
        _, known = section.split(clip)
        clip[:, :, section.frames] = generate(section.places, known, WINDOW)
    return clip


def _grey(components: Components, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the latents (1, 16, 1, h, w) of a grey image."""
    width, height = size
    with on_device(components.vae, device):
        return encode_images(components, torch.zeros(1, 3, 1, height, width))


def _captions(
    components: Components, text: dict[str, Tensor], device: torch.device, options: CompileOptions
) -> list[dict[str, Tensor]]:
    """Split the outputs of several captions into batches of one, padded only for compiled blocks."""
    if IMAGE not in text:
        text = text | {IMAGE: no_siglip_states(components.text_encoders[SIGLIP], len(text[MASK]))}
    return [pad_text(each, options) for each in OUTPUTS.each(text, device)]
