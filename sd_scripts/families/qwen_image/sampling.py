"""Sample Qwen-Image with Euler steps, without changing the training's RNG state."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.sampling import (
    batch_noise,
    control_pixels,
    eval_mode,
    make_generator,
    offer_preview,
    on_device,
    one_of,
)
from sd_scripts.families.qwen_image.card import CARD
from sd_scripts.families.qwen_image.objective import predict, qwen_shift
from sd_scripts.families.qwen_image.text import MASK, pad_text
from sd_scripts.families.qwen_image.vae import decode_latents, encode_images
from sd_scripts.library.diffusion.dit_layers import PATCH
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

LATENT = 8
"""Pixels along a side of one latent."""
LAST_SIGMA = 0.02
"""Where the last step begins."""
NOTHING = " "
"""The negative prompt that stands for none: the model was never shown an empty one."""


@torch.no_grad()
def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device, and decodes one image
    after the other. A seed gives the same noise on every device.
    """
    prompt, images = prompts[0], len(prompts)
    transformer: Any = components.denoiser
    device = transformer.img_in.weight.device
    with eval_mode([components.denoiser, components.vae]):
        height, width = size_of(prompt, CARD.side_multiple)
        with on_device(components.vae, device):
            pixels = control_pixels(prompt, (width, height), control_rules(settings.values().get))
            controls = [encode_images(components, each).expand(images, -1, -1, -1) for each in pixels]
        generators = [make_generator(each.seed) for each in prompts]
        noise = batch_noise(generators, 16, height // LATENT, width // LATENT).to(device)
        captions = [
            {name: each.expand(images, *each.shape[1:]) for name, each in caption.items()}
            for caption in captions_of(text, device, settings)
        ]
        predicted = partial(predict, transformer, controls=controls)
        latents = denoise(predicted, noise, captions, prompt.steps, prompt.scale, partial(_decoded, components))
        with on_device(components.vae, device):
            return [Media.of(_decoded(components, each)) for each in latents.split(1)]


sample = one_of(sample_batch)


def prompt_captions(prompt: SamplePrompt) -> list[Caption]:
    """Return the prompt, preceded by the negative prompt if guidance uses one."""
    negative = [Caption(prompt.negative_prompt or NOTHING)] if prompt.scale != 1 else []
    return [*negative, Caption(prompt.prompt)]


def captions_of(text: dict[str, Tensor], device: torch.device, settings: Settings) -> list[dict[str, Tensor]]:
    """Split the outputs of several captions, (B, T, ...), into batches of one, padded only for compiled blocks."""
    return [
        pad_text({name: each[number : number + 1, :length].to(device) for name, each in text.items()}, settings)
        for number, length in enumerate(text[MASK].sum(1).tolist())
    ]


def sampling_sigmas(steps: int, tokens: int) -> Tensor:
    """Return the sigmas from 1 to 0 for images of so many tokens, (steps + 1,), on the CPU: where each step begins and
    the last ends. They are shifted, then stretched so that the last step begins at LAST_SIGMA."""
    sigmas = shifted(torch.linspace(1, 1 / steps, steps, dtype=torch.float64), qwen_shift(tokens))
    if steps > 1:
        sigmas = 1 - (1 - sigmas) * (1 - LAST_SIGMA) / (1 - sigmas[-1])
    return torch.cat((sigmas, sigmas.new_zeros(1))).float()


def denoise(
    predicted: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor],
    noise: Tensor,
    captions: list[dict[str, Tensor]],
    steps: int,
    scale: float,
    decode: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return latents (B, 16, h, w) float32, normalised. `predicted`: noisy latents, timesteps, text -> the velocity;
    `captions`: the prompt, preceded by the negative one if there is guidance. They are read one after the other, since
    their lengths differ. `decode` makes previews of latents."""
    latents = noise
    sigmas = sampling_sigmas(steps, math.prod(side // PATCH for side in noise.shape[-2:])).to(noise.device)
    for t, after in pairwise(sigmas):
        velocities = [predicted(latents, t.expand(len(latents)), text) for text in captions]
        velocity = guided(velocities, scale)
        offer_preview(partial(decode, (latents - t * velocity)[:1]))
        latents = latents + (after - t) * velocity
    return latents


def _decoded(components: Components, latents: Tensor) -> Tensor:
    """Decode latents (1, 16, h, w), whose noise is taken away, with the VAE on their device."""
    with on_device(components.vae, latents.device):
        return decode_latents(components, latents)[0]


def guided(velocities: list[Tensor], scale: float) -> Tensor:
    """Combine the velocities (B, 16, h, w) for the negative prompt and the prompt; a single one stays as it is. Each
    token keeps the norm that it has for the prompt alone."""
    *negative, positive = velocities
    if not negative:
        return positive
    combined = negative[0] + scale * (positive - negative[0])
    return combined * (_token_norm(positive) / _token_norm(combined))


def _token_norm(latents: Tensor) -> Tensor:
    """Return the norm of the 64 values of each token, for each of its latents: (B, 1, h, w)."""
    squares = latents.square().sum(1, keepdim=True)
    norms = torch.nn.functional.avg_pool2d(squares, PATCH).mul(PATCH**2).sqrt()
    return norms.repeat_interleave(PATCH, -1).repeat_interleave(PATCH, -2)
