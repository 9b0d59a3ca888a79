"""Shared parts of sampling."""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor, nn

from sd_scripts.data.batch import stack_pixels
from sd_scripts.data.plan.buckets import Extent, fit_into
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.clips import prepare_clip
from sd_scripts.data.sources.controls import ControlRules
from sd_scripts.data.sources.images import Augmentation, prepare_image, read_size
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.common.components import Components
from sd_scripts.formats.clips.clip_files import is_clip
from sd_scripts.formats.clips.probe import probe
from sd_scripts.formats.clips.spans import ClipRules, trained_times
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings

Sample = Callable[[Components, SamplePrompt, dict[str, Tensor], Settings], Media]
SampleBatch = Callable[[Components, Sequence[SamplePrompt], dict[str, Tensor], Settings], list[Media]]


def one_of(sample_batch: SampleBatch) -> Sample:
    """Return a function that generates one image like `sample_batch`."""
    return lambda components, prompt, text, settings: sample_batch(components, [prompt], text, settings)[0]


def prompt_captions(prompt: SamplePrompt, *, unset: str | None = "") -> list[Caption]:
    """Return the prompt, preceded by the negative prompt if guidance uses one. `unset`: the negative prompt by
    default; None: there is no guidance without one."""
    negative = prompt.negative_prompt or unset
    if prompt.scale == 1 or negative is None:
        return [Caption(prompt.prompt)]
    return [Caption(negative), Caption(prompt.prompt)]


def length_of(prompt: SamplePrompt, card: FamilyCard) -> tuple[int, float]:
    """Return the number of frames that the family can generate, at most the prompt's, and the frames per second."""
    assert card.clips
    return card.clips.fitting(prompt.frames), prompt.fps or card.clips.fps


def make_generator(seed: int | None) -> torch.Generator:
    """Return a generator on the CPU, so that a seed gives the same noise for every device; None: a random seed."""
    return torch.Generator().manual_seed(secrets.randbits(32) if seed is None else seed)


def batch_noise(generators: Sequence[torch.Generator], *shape: int) -> Tensor:
    """Return noise (B, *shape) float32 on the CPU, each image's from its own generator."""
    return torch.stack([torch.randn(shape, generator=generator) for generator in generators])


def apply_guidance(prediction: Tensor, scale: float, images: int = 1) -> Tensor:
    """Combine the predictions (2B, ...) for the negative prompt and the prompt, each of B `images`; predictions for the
    prompt alone (B, ...) are returned unchanged."""
    if len(prediction) == images:
        return prediction
    without, with_prompt = prediction.chunk(2)
    return without + scale * (with_prompt - without)


Decode = Callable[[], Tensor]
"""Returns the image so far, (3, H, W) in 0..1. Of a clip, which takes long to decode, a few of its frames will do:
(3, F, H, W)."""
_previewer: ContextVar[Callable[[Decode], None] | None] = ContextVar("previewer", default=None)


@contextmanager
def previewing(show: Callable[[Decode], None]) -> Iterator[None]:
    """Call `show` after each sampling step of the block, for families that offer previews."""
    token = _previewer.set(show)
    try:
        yield
    finally:
        _previewer.reset(token)


def offer_preview(decode: Decode) -> None:
    """Offer the image so far to `previewing`, which decodes it if it wants to. A family calls it after each step."""
    if show := _previewer.get():
        show(decode)


def control_pixels(prompt: SamplePrompt, size: tuple[int, int], rules: ControlRules) -> list[Tensor]:
    """Return the control images of a prompt, each (1, 3, H, W) float32 in -1..1, resized like those of training images.

    `size`: width and height of the sample. Raises ValueError if one cannot be read.
    """
    images = []
    for path in (Path(os.path.expanduser(name)) for name in prompt.control_images):
        pixels, _ = prepare_image(path, None, rules.fit(read_size(path), Extent(*size)), Augmentation(), Random(0))
        images.append(stack_pixels([pixels]))
    return images


def control_frames(name: str, extent: Extent, fps: float) -> Tensor:
    """Return the frames (1, 3, F, H, W) in -1..1 of a clip, a folder of frames or an image that a sample of this extent
    follows: a longer clip is cut, a shorter one repeats its last frame. Raises ValueError if it cannot be read."""
    path = Path(os.path.expanduser(name))
    if path.is_dir() or is_clip(path):
        clip = probe(path)
        times = trained_times(clip, ClipRules(target_fps=fps))[: extent.frames]
        fit = fit_into(Extent(*extent.size), clip.size)
        pixels, _ = prepare_clip(path, times, clip.size, None, fit, Augmentation(), Random(0))
    else:
        image, _ = prepare_image(path, None, fit_into(Extent(*extent.size), read_size(path)), Augmentation(), Random(0))
        pixels = image[None]
    missing = extent.frames - len(pixels)
    return stack_pixels([np.concatenate((pixels, *[pixels[-1:]] * missing))])


@contextmanager
def eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put the modules in eval mode, and restore each submodule's mode afterwards."""
    training = [part for module in modules for part in module.modules() if part.training]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move the module to the device, and afterwards restore its original tensors without copying back."""
    away = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.device != device]
    originals = [tensor.data for tensor in away]
    try:
        for tensor in away:
            tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, original in zip(away, originals, strict=True):
            tensor.data = original
