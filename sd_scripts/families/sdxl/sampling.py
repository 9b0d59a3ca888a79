"""Pictures while training: eager, outside of autograd, and without a trace in the training's random numbers."""

import inspect
import secrets
from contextlib import ExitStack

import torch
from PIL import Image
from torch import Tensor

from sd_scripts.families.family import Parts
from sd_scripts.families.sampling import as_image, lent, resting
from sd_scripts.families.sdxl.samplers import make_sampler
from sd_scripts.families.sdxl.text import encode_text, tokenize
from sd_scripts.families.sdxl.unet import predict
from sd_scripts.families.sdxl.vae import decode_latents
from sd_scripts.options.loss import NoiseOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.prompt_lines import SIDE_MULTIPLES, SamplePrompt, size_of
from sd_scripts.options.sampling import SampleOptions
from sd_scripts.options.settings import Settings

MULTIPLE = SIDE_MULTIPLES["sdxl"]
"""Of a picture's sides: one latent is 8x8 pixels."""


@torch.no_grad()
def sample(parts: Parts, prompt: SamplePrompt, settings: Settings) -> Image.Image:
    """One picture by the model as it is, with the LoRA it wears, on the denoiser's device.

    Compiled blocks run eagerly (a compiled no_grad pass would need graphs of its own), modes and devices are as
    before afterwards, and the same seed gives the same noise on every device.
    """
    weight = next(parts.denoiser.parameters())
    modules = [parts.denoiser, parts.vae, *parts.text_encoders]
    with torch.compiler.set_stance("force_eager"), resting(modules), ExitStack() as borrowed:
        for module in modules:
            borrowed.enter_context(lent(module, weight.device))
        latents = _denoise(parts, prompt, settings, weight)
        return as_image(decode_latents(parts, latents)[0])


def _denoise(parts: Parts, prompt: SamplePrompt, settings: Settings, weight: Tensor) -> Tensor:
    """(1, 4, h, w) float32 latents, scaled as the U-Net sees them."""
    height, width = size_of(prompt, MULTIPLE)
    sampler = make_sampler(
        prompt.sampler or settings[SampleOptions].sample_sampler,
        velocity=settings[ModelOptions].v_parameterization,
        zero_terminal_snr=settings[NoiseOptions].zero_terminal_snr,
    )
    sampler.set_timesteps(prompt.steps, device=weight.device)
    generator = torch.Generator().manual_seed(secrets.randbits(32) if prompt.seed is None else prompt.seed)
    own = {"generator": generator} if "generator" in inspect.signature(sampler.step).parameters else {}

    guided = prompt.scale != 1
    captions = [prompt.negative_prompt, prompt.prompt] if guided else [prompt.prompt]
    text = encode_text(parts, tokenize(parts, captions, settings))
    context = torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=-1).to(weight)
    pooled = text["pool2"].to(weight)
    sizes = torch.tensor([[height, width, 0, 0, height, width]] * len(captions), device=weight.device)

    latents = torch.randn((1, 4, height // MULTIPLE, width // MULTIPLE), generator=generator).to(weight.device)
    latents = latents * sampler.init_noise_sigma
    for t in sampler.timesteps:
        noisy = sampler.scale_model_input(latents, t).expand(len(captions), -1, -1, -1)
        out = predict(parts.denoiser, noisy.to(weight.dtype), t.expand(len(captions)), context, pooled, sizes)
        if guided:
            without, with_prompt = out.chunk(2)
            out = without + prompt.scale * (with_prompt - without)
        latents = sampler.step(out, t, latents, **own, return_dict=False)[0]
    return latents.float()
