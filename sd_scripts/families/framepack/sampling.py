"""Sample FramePack clips section by section, and images as single frames."""

from functools import partial
from typing import cast

import torch
from torch import Tensor

from sd_scripts.families.cards.noise_levels import shift_of
from sd_scripts.families.common.encoders.hunyuan_vae import CLIP_VAE
from sd_scripts.families.common.encoders.llama import MASK, pad_text
from sd_scripts.families.common.encoders.vision import no_siglip_states
from sd_scripts.families.common.flow_sampling import ClipSample, sample_clip
from sd_scripts.families.common.sampling import apply_guidance, offer_preview
from sd_scripts.families.framepack.card.options import FramePackOptions
from sd_scripts.families.framepack.model import FramePackTransformer, Known
from sd_scripts.families.framepack.objective import predict
from sd_scripts.families.framepack.sections import WINDOW, count_sections, section_of, single_frame, with_controls
from sd_scripts.families.framepack.text import IMAGE, OUTPUTS, SIGLIP
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas
from sd_scripts.library.diffusion.unipc_b1 import unipc
from sd_scripts.options.compile import CompileOptions

MOST_SHIFT = 7.0


def generate(clip: ClipSample) -> Tensor:
    """Return the latents of a clip that begins with the prompt's start image, or of an image. Without a start image the
    clip begins with a grey one."""
    options = clip.settings[FramePackOptions]
    prompt, text = clip.prompt, clip.text
    names = (prompt.start_image,) if prompt.start_image else prompt.control_images
    if IMAGE not in text:
        text = {**text, IMAGE: no_siglip_states(clip.components.text_encoders[SIGLIP], len(text[MASK]))}
    captions = [pad_text(each, clip.settings[CompileOptions]) for each in OUTPUTS.each(text, clip.device)]
    images = [clip.image(name) for name in names]
    if clip.extent.frames > 1:
        width, height = clip.extent.size
        start = images[0] if images else clip.encoded(torch.zeros(1, 3, 1, height, width))
        return _clip(clip, captions, start, f1=options.f1)
    section = single_frame(options, clip.device)
    _, known = section.split(torch.zeros((1, *clip.vae.shape(clip.extent)), device=clip.device))
    return _section(clip, captions, section.places, with_controls(known, images, options.clean_places))


sample = partial(sample_clip, vae=CLIP_VAE, generate=generate)


def _clip(clip: ClipSample, captions: list[dict[str, Tensor]], start: Tensor, *, f1: bool) -> Tensor:
    """Return the latents (1, 16, 1 + 9n, h, w) of a clip with this start image (1, 16, 1, h, w). Sections are put into
    their places in it as they come: what does not exist yet is seen as zeros."""
    sections = count_sections(clip.vae.shape(clip.extent)[1])
    latents = start.new_zeros((*start.shape[:2], 1 + WINDOW * sections, *start.shape[3:]))
    latents[:, :, :1] = start
    for number in range(sections) if f1 else reversed(range(sections)):
        section = section_of(number, sections, start.device, f1=f1)
        _, known = section.split(latents)
        latents[:, :, section.frames] = _section(clip, captions, section.places, known)
    return latents


def _section(clip: ClipSample, captions: list[dict[str, Tensor]], places: Tensor, known: list[Known]) -> Tensor:
    """Return the latents (1, 16, f, h, w) of a section at these places (f,). Captions: the prompt's, preceded by the
    negative one if there is guidance."""
    transformer = cast(FramePackTransformer, clip.components.denoiser)
    prompt = clip.prompt
    noise = clip.noise(len(places))
    shift = prompt.flow_shift or min(shift_of(noise[0, 0].numel() // 4), MOST_SHIFT)

    def sample_at(latents: Tensor, sigma: float) -> Tensor:
        t = torch.full((1,), sigma, device=clip.device)
        each = [predict(transformer, latents, places, known, t, one, prompt.guidance) for one in captions]
        found = latents - sigma * apply_guidance(torch.cat(each), prompt.scale)
        offer_preview(partial(clip.preview, found))
        return found

    return unipc(noise, sampling_sigmas(prompt.steps, shift).tolist(), sample_at)
