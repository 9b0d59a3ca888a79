"""Sample by flow matching with Euler steps, without changing the training's RNG state."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.sources.controls import ControlRules
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.sampling import (
    apply_guidance,
    batch_noise,
    control_pixels,
    eval_mode,
    make_generator,
    offer_preview,
    on_device,
)
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.diffusion.flow_solvers import Solver
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import CONTROLS, SamplePrompt, size_of

LATENT = 8
"""Pixels along a side of one latent."""
CHANNELS = 16

Velocity = Callable[[Tensor, Tensor], Tensor]
"""Latents (B, 16, h, w) and one timestep -> the velocity that guidance makes of all captions, (B, 16, h, w)."""


@torch.no_grad()
def sample_flow(
    components: Components,
    prompts: Sequence[SamplePrompt],
    card: FamilyCard,
    rules: ControlRules,
    *,
    encode: Callable[[Components, Tensor], Tensor],
    decode: Callable[[Components, Tensor], Tensor],
    sigmas_of: Callable[[Tensor], Tensor],
    velocity_of: Callable[[list[Tensor]], Velocity],
    channels: int = CHANNELS,
    pixels: int = LATENT,
) -> list[Media]:
    """Generate images that differ in their seeds alone, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device, and decodes one image
    after the other. A seed gives the same noise on every device. `rules`: how control images are
    resized. `encode` and `decode`: pixels and latents of the VAE;
    `sigmas_of`: noise -> where the steps begin and the last ends; `velocity_of`: latents of the control images, each
    (1, 16, h, w) -> what predicts the velocity. `channels` of the latents, and `pixels` along a side of one.
    """
    prompt = prompts[0]
    height, width = size_of(prompt, card.side_multiple)
    device = cast(BlockTransformer, components.denoiser).device

    def decoded(latents: Tensor) -> Tensor:
        """Decode latents (1, 16, h, w), whose noise is taken away, with the VAE on their device."""
        with on_device(components.vae, latents.device):
            return decode(components, latents)[0]

    with eval_mode([components.denoiser, components.vae]):
        controls: list[Tensor] = []
        if CONTROLS.works_with(card.capabilities):
            with on_device(components.vae, device):
                images = control_pixels(prompt, (width, height), rules)
                controls = [encode(components, each) for each in images]
        generators = [make_generator(each.seed) for each in prompts]
        noise = batch_noise(generators, channels, height // pixels, width // pixels).to(device)
        latents = euler_steps(noise, sigmas_of(noise), velocity_of(controls), decoded)
        with on_device(components.vae, device):
            return [Media.of(decoded(each)) for each in latents.split(1)]


def velocity_of_captions(
    predict: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor],
    captions: Iterable[dict[str, Tensor]],
    scale: float,
    images: int,
) -> Velocity:
    """Return the velocity of a number of images of one prompt. The captions, the prompt before the negative one, are
    read one at a time, since their lengths differ."""
    expanded = [{name: each.expand(images, *each.shape[1:]) for name, each in caption.items()} for caption in captions]

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        predicted = [predict(latents, t.expand(images), caption) for caption in expanded]
        return apply_guidance(torch.cat(predicted), scale, images)

    return velocity


def solver_steps(noise: Tensor, solver: Solver, velocity: Velocity, decode: Callable[[Tensor], Tensor]) -> Tensor:
    """Return latents (B, C, *S) float32 without noise; `decode` makes previews of the first, (1, C, *S)."""
    latents = noise
    for sigma in solver.sigmas[:-1]:
        predicted = velocity(latents, torch.tensor(sigma, dtype=torch.float32, device=noise.device))
        offer_preview(partial(decode, (latents - sigma * predicted)[:1]))
        latents = solver.step(latents, predicted)
    return latents


def euler_steps(noise: Tensor, sigmas: Tensor, velocity: Velocity, decode: Callable[[Tensor], Tensor]) -> Tensor:
    """Return latents (B, 16, h, w) float32 without noise; `decode` makes previews of the first, (1, 16, h, w)."""
    latents = noise
    for t, after in pairwise(sigmas.to(noise.device)):
        predicted = velocity(latents, t)
        offer_preview(partial(decode, (latents - t * predicted)[:1]))
        latents = latents + (after - t) * predicted
    return latents
