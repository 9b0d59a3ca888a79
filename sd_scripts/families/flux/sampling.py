"""Sample FLUX.1 images with Euler steps, without changing the training's RNG state."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.sampling import (
    apply_guidance,
    batch_noise,
    control_pixels,
    eval_mode,
    make_generator,
    offer_preview,
    on_device,
    one_of,
)
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.families.flux.objective import guidance_vector
from sd_scripts.families.flux.packing import predict
from sd_scripts.families.flux.vae import decode_latents, encode_images
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import sampling_sigmas, shift_of
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import CONTROLS, SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

LATENT = 8
"""Pixels along a side of one latent."""


@torch.no_grad()
def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the autoencoder is moved to its device, and decodes one
    image after the other. A seed gives the same noise on every device.
    """
    flux: Any = components.denoiser
    device = flux.img_in.weight.device
    text = {name: tensor.to(device) for name, tensor in text.items()}
    with eval_mode([components.denoiser, components.vae]):
        with on_device(components.vae, device):
            controls = _control_latents(components, prompts[0], settings)
        masked = settings[FluxModelOptions].apply_t5_attn_mask
        latents = _denoise(components, prompts, text, controls, device, masked=masked)
        with on_device(components.vae, device):
            return [Media.of(_decoded(components, each)) for each in latents.split(1)]


sample = one_of(sample_batch)


def prompt_captions(prompt: SamplePrompt) -> list[Caption]:
    """Return the prompt, preceded by the negative prompt if guidance uses one."""
    guided = prompt.scale != 1 and prompt.negative_prompt
    negative = [Caption(prompt.negative_prompt)] if guided else []
    return [*negative, Caption(prompt.prompt)]


def _control_latents(components: Components, prompt: SamplePrompt, settings: Settings) -> list[Tensor]:
    """Return the latents (1, 16, h, w) of the prompt's control images, on the VAE's device."""
    if not CONTROLS.works_with(card_of(settings.script.family).capabilities):
        return []
    height, width = size_of(prompt, CARD.side_multiple)
    return [
        encode_images(components, pixels)
        for pixels in control_pixels(prompt, (width, height), control_rules(settings.values().get))
    ]


def _denoise(
    components: Components,
    prompts: Sequence[SamplePrompt],
    text: dict[str, Tensor],
    controls: list[Tensor],
    device: torch.device,
    *,
    masked: bool,
) -> Tensor:
    """Return latents (B, 16, h, w) float32, shifted and scaled."""
    prompt, images = prompts[0], len(prompts)
    height, width = size_of(prompt, CARD.side_multiple)
    generators = [make_generator(each.seed) for each in prompts]
    latents = batch_noise(generators, 16, height // LATENT, width // LATENT).to(device)
    rows, columns = grid_of(latents)
    flux: Any = components.denoiser
    shift = shift_of(rows * columns) if flux.shape.guidance else 1.0  # schnell was distilled with uniform steps
    sigmas = sampling_sigmas(prompt.steps, shift).to(device)

    captions = len(text["l_pooled"])
    text = {name: each.repeat_interleave(images, 0) for name, each in text.items()}
    controls = [each.expand(captions * images, -1, -1, -1) for each in controls]
    for t, after in pairwise(sigmas):
        noisy, at = latents.repeat(captions, 1, 1, 1), t.expand(captions * images)
        guidance = guidance_vector(components, at, prompt.guidance)
        velocity = predict(components.denoiser, noisy, at, text, guidance, masked=masked, controls=controls)
        velocity = apply_guidance(velocity, prompt.scale, images)
        offer_preview(partial(_decoded, components, (latents - t * velocity)[:1]))
        latents = latents + (after - t) * velocity
    return latents


def _decoded(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (1, 16, h, w), whose noise is taken away, with the autoencoder on their device."""
    with on_device(components.vae, latents.device):
        return decode_latents(components, latents)[0]
