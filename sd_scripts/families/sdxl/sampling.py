"""Sample SDXL images, without changing the training's RNG state."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.common.family import Components
from sd_scripts.families.common.sampling import (
    apply_guidance,
    batch_noise,
    eval_mode,
    make_generator,
    offer_preview,
    on_device,
    one_of,
)
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.unet import predict
from sd_scripts.families.sdxl.vae import decode_latents
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt, size_of
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.settings.settings import Settings

MULTIPLE = CARD.side_multiple
"""Multiple of an image's sides: one latent is 8x8 pixels."""


@torch.no_grad()
def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, with the current model and its LoRA, on the denoiser's device.

    Modes and devices are restored afterwards. A seed gives the same noise on every device. Images are decoded one at a
    time.
    """
    from sd_scripts.families.sdxl.samplers import make_sampler  # most runs draw no sample, and SciPy is slow to import

    sampler = make_sampler(
        prompts[0].sampler or settings[SampleOptions].sample_sampler,
        velocity=settings[ModelOptions].v_parameterization,
        zero_terminal_snr=settings[NoiseOptions].zero_terminal_snr,
    )
    weight = next(components.denoiser.parameters())
    modules = [components.denoiser, components.vae]
    with eval_mode(modules), on_device(components.vae, weight.device):
        latents = _denoise(components, prompts, text, sampler, weight)
        return [Media.of(decode_latents(components, each)[0]) for each in latents.split(1)]


sample = one_of(sample_batch)


def _denoise(
    components: Components,
    prompts: Sequence[SamplePrompt],
    text: dict[str, Tensor],
    sampler: Any,
    weight: Tensor,
) -> Tensor:
    """Return latents (B, 4, h, w) float32, scaled as the U-Net sees them."""
    prompt = prompts[0]
    images = len(prompts)
    height, width = size_of(prompt, MULTIPLE)
    sampler.set_timesteps(prompt.steps, device=weight.device)
    generators = [make_generator(each.seed) for each in prompts]  # steps draw from them, too
    step_arguments = {"generator": generators} if "generator" in inspect.signature(sampler.step).parameters else {}

    captions = len(text["pool2"])
    context = torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=-1).to(weight).repeat_interleave(images, 0)
    pooled = text["pool2"].to(weight).repeat_interleave(images, 0)
    sizes = torch.tensor([[height, width, 0, 0, height, width]] * captions * images, device=weight.device)

    latents = batch_noise(generators, 4, height // MULTIPLE, width // MULTIPLE).to(weight.device)
    latents = latents * sampler.init_noise_sigma
    for t in sampler.timesteps:
        noisy = sampler.scale_model_input(latents, t).repeat(captions, 1, 1, 1)
        at = t.expand(captions * images)
        out = predict(components.denoiser, noisy.to(weight.dtype), at, context, pooled, sizes)
        out = apply_guidance(out, prompt.scale, images)
        offer_preview(partial(_preview, components, sampler, noisy[:1], out[:1], t))
        latents = sampler.step(out, t, latents, **step_arguments, return_dict=False)[0]
    return latents.float()


def _preview(components: Components, sampler: Any, noisy: Tensor, out: Tensor, t: Tensor) -> Tensor:
    """Decode the U-Net's prediction of the image (1, 4, h, w) at timestep t: the noisy one without its noise."""
    signal = sampler.alphas_cumprod[int(t)].to(noisy.device)  # the share of the image in the variance
    if sampler.config.prediction_type == "v_prediction":
        latents = signal.sqrt() * noisy - (1 - signal).sqrt() * out
    else:
        latents = (noisy - (1 - signal).sqrt() * out) / signal.sqrt()
    return decode_latents(components, latents.float())[0]
