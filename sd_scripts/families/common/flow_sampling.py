"""Sample images and clips by flow matching, without changing the training's RNG state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.plan.blueprint import control_rules
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.captions import CaptionOutputs
from sd_scripts.families.common.sampling import (
    apply_guidance,
    batch_noise,
    control_pixels,
    eval_mode,
    length_of,
    make_generator,
    offer_preview,
    on_device,
)
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.diffusion.flow_solvers import Solver
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import CONTROLS, SamplePrompt, size_of
from sd_scripts.settings.settings import Settings

LATENT = 8
"""Pixels along a side of one latent."""
CHANNELS = 16
PREVIEWED = 2
"""Latent frames of a clip that a preview decodes."""

Predict = Callable[..., Tensor]
Velocity = Callable[[Tensor, Tensor], Tensor]
"""Latents (B, 16, h, w) and one timestep -> the velocity that guidance makes of all captions, (B, 16, h, w)."""


@dataclass(frozen=True, kw_only=True)
class ImageSample:
    """Images that are generated together, which differ in their seeds alone."""

    components: Components
    settings: Settings
    prompts: Sequence[SamplePrompt]
    text: Mapping[str, Tensor]
    """Outputs of the text encoders for one of the prompts."""
    controls: Sequence[Tensor]
    """Latents of the control images, each (1, C, h, w)."""

    @property
    def prompt(self) -> SamplePrompt:
        return self.prompts[0]

    @property
    def device(self) -> torch.device:
        return cast(BlockTransformer, self.components.denoiser).device

    def controls_of(self, images: int) -> list[Tensor]:
        """Return the latents of the control images for a number of images, each (B, C, h, w)."""
        return [each.expand(images, -1, -1, -1) for each in self.controls]


@torch.no_grad()
def sample_flow(
    components: Components,
    prompts: Sequence[SamplePrompt],
    text: Mapping[str, Tensor],
    settings: Settings,
    *,
    encode: Callable[[Components, Tensor], Tensor],
    decode: Callable[[Components, Tensor], Tensor],
    sigmas_of: Callable[[ImageSample, Tensor], Tensor],
    velocity_of: Callable[[ImageSample], Velocity],
    channels: int = CHANNELS,
    pixels: int = LATENT,
) -> list[Media]:
    """Generate images that differ in their seeds alone, with the current model and its LoRA, on the denoiser's device.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device, and decodes one image
    after the other. A seed gives the same noise on every device. `encode` and `decode`: pixels and latents of the VAE;
    `sigmas_of`: noise -> where the steps begin and the last ends; `velocity_of` returns what predicts the velocity.
    `channels` of the latents, and `pixels` along a side of one.
    """
    prompt, card = prompts[0], card_of(settings.script.family)
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
                images = control_pixels(prompt, (width, height), control_rules(settings.values().get))
                controls = [encode(components, each) for each in images]
        sample = ImageSample(components=components, settings=settings, prompts=prompts, text=text, controls=controls)
        generators = [make_generator(each.seed) for each in prompts]
        noise = batch_noise(generators, channels, height // pixels, width // pixels).to(device)
        latents = euler_steps(noise, sigmas_of(sample, noise), velocity_of(sample), decoded)
        with on_device(components.vae, device):
            return [Media.of(decoded(each)) for each in latents.split(1)]


@dataclass(frozen=True, kw_only=True)
class ClipVAE:
    """How a VAE makes latents of clips (B, C, f, h, w), normalised, and frames (B, 3, F, H, W) of them."""

    shape: Callable[[Extent], tuple[int, ...]]
    """Shape (C, f, h, w) of the latents of one clip."""
    encode: Callable[[Components, Tensor], Tensor]
    decode: Callable[[Components, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ClipSample:
    """A clip, or an image, that is generated, and how its parts are encoded and decoded."""

    components: Components
    settings: Settings
    prompt: SamplePrompt
    text: Mapping[str, Tensor]
    extent: Extent
    fps: float
    vae: ClipVAE
    generator: torch.Generator

    @property
    def device(self) -> torch.device:
        return cast(BlockTransformer, self.components.denoiser).device

    def noise(self, latent_frames: int | None = None) -> Tensor:
        """Return noise (1, C, f, h, w) for the clip or a part of it, the same on every device for a seed."""
        channels, frames, *sides = self.vae.shape(self.extent)
        shape = (1, channels, latent_frames or frames, *sides)
        return torch.randn(shape, generator=self.generator).to(self.device)

    def encoded(self, pixels: Tensor) -> Tensor:
        with on_device(self.components.vae, self.device):
            return self.vae.encode(self.components, pixels)

    def frame(self, name: str) -> Tensor:
        """Return an image file (1, 3, 1, H, W) float32 in -1..1 that covers the clip, resized like control images.
        Raises ValueError if it cannot be read."""
        only = SamplePrompt(control_images=(name,))
        (pixels,) = control_pixels(only, self.extent.size, control_rules(self.settings.values().get))
        return pixels[:, :, None]

    def image(self, name: str) -> Tensor:
        """Return the latents (1, C, 1, h, w) of an image file. Raises ValueError if it cannot be read."""
        return self.encoded(self.frame(name))

    def decoded(self, latents: Tensor) -> Tensor:
        """Return the frames (3, F, H, W) in 0..1."""
        with on_device(self.components.vae, self.device):
            return self.vae.decode(self.components, latents)[0]

    def preview(self, latents: Tensor) -> Tensor:
        """Return the first frames of latents: a clip takes long to decode."""
        return self.decoded(latents[:, :, :PREVIEWED])


@torch.no_grad()
def sample_clip(
    components: Components,
    prompt: SamplePrompt,
    text: Mapping[str, Tensor],
    settings: Settings,
    *,
    vae: ClipVAE,
    generate: Callable[[ClipSample], Tensor],
) -> Media:
    """Generate a clip, or an image, with the current model and its LoRA, on the denoiser's device; `generate` returns
    its latents.

    The denoiser is not moved, since its blocks may be swapped; the VAE is moved to its device.
    """
    card = card_of(settings.script.family)
    height, width = size_of(prompt, card.side_multiple)
    frames, fps = length_of(prompt, card)
    clip = ClipSample(
        components=components,
        settings=settings,
        prompt=prompt,
        text=text,
        extent=Extent(width, height, frames),
        fps=fps,
        vae=vae,
        generator=make_generator(prompt.seed),
    )
    with eval_mode([components.denoiser, components.vae]):
        return Media.of(clip.decoded(generate(clip)), fps)


def velocity_of_batch(predict: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor], sample: ImageSample) -> Velocity:
    """Return the velocity of images whose captions are read together."""
    images = len(sample.prompts)
    captions = len(next(iter(sample.text.values())))
    outputs = {name: each.to(sample.device).repeat_interleave(images, 0) for name, each in sample.text.items()}

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        noisy = latents.repeat(captions, 1, 1, 1)
        return apply_guidance(predict(noisy, t.expand(len(noisy)), outputs), sample.prompt.scale, images)

    return velocity


def velocity_of_captions(
    predict: Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor],
    captions: Iterable[dict[str, Tensor]],
    scale: float,
    images: int,
) -> Velocity:
    """Return the velocity of a number of images of one prompt. The captions, the prompt after the negative one, are
    read one at a time, since their lengths differ."""
    expanded = [{name: each.expand(images, *each.shape[1:]) for name, each in caption.items()} for caption in captions]

    def velocity(latents: Tensor, t: Tensor) -> Tensor:
        predicted = [predict(latents, t.expand(images), caption) for caption in expanded]
        return apply_guidance(torch.cat(predicted), scale, images)

    return velocity


def reading_together(predict: Predict) -> Callable[[ImageSample], Velocity]:
    """Return the `velocity_of` of a model that reads both captions together; `predict`: denoiser, noisy latents,
    timesteps, text -> velocity."""
    return lambda sample: velocity_of_batch(partial(predict, sample.components.denoiser), sample)


def reading_each(predict: Predict, outputs: CaptionOutputs) -> Callable[[ImageSample], Velocity]:
    """Return the same for a model that reads captions without padding, one at a time."""

    def velocity_of(sample: ImageSample) -> Velocity:
        options = sample.settings[CompileOptions]
        captions = (outputs.pad(each, options) for each in outputs.each(sample.text, sample.device))
        predicted = partial(predict, sample.components.denoiser)
        return velocity_of_captions(predicted, captions, sample.prompt.scale, len(sample.prompts))

    return velocity_of


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
