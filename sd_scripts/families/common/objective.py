"""Inputs of a training step that families share."""

from collections.abc import Callable

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.library.diffusion.flow_timesteps import draw_sigmas, within_bounds
from sd_scripts.library.diffusion.noise import expand_to, normal, perturb, timestep_bounds
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import NoiseOptions


def loss_inputs(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """Return loss_weight (B,), and mask (B, 1, H, W) if the batch has one."""
    tensors = {"loss_weight": batch.loss_weight, "mask": batch.mask}
    return {name: x.to(device, torch.float32, non_blocking=True) for name, x in tensors.items() if x is not None}


def flow_inputs(
    batch: Batch,
    latents: Tensor,
    flow: FlowOptions,
    noise_options: NoiseOptions,
    generator: torch.Generator,
    timesteps: Tensor | None,
    *,
    tokens: int,
    draw: Callable[[int, FlowOptions, int, torch.Generator], Tensor] = draw_sigmas,
) -> dict[str, Tensor]:
    """Return the inputs of flow matching, on the latents' device.

    noisy and target, the velocity, as latents (B, C, *S); timesteps (B,) float32, 0 is the image and 1 noise alone,
    drawn by `draw` for images of so many `tokens` unless they are given; those of loss_inputs.
    """
    noise = normal(latents.shape, generator)
    if timesteps is None:
        sigmas = draw(len(latents), flow, tokens, generator)
        timesteps = within_bounds(sigmas, *timestep_bounds(noise_options))
    t = expand_to(timesteps.float(), latents)
    return {
        "noisy": (1 - t) * latents + t * perturb(noise, noise_options, generator),
        "target": noise - latents,
        "timesteps": timesteps.float(),
        **loss_inputs(batch, latents.device),
    }
