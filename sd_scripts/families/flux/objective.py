"""What FLUX.1 learns: the straight way from image to noise, told from a point between them."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.family import Components
from sd_scripts.families.flux.options import FluxModelOptions
from sd_scripts.families.flux.packing import grid_of, predict
from sd_scripts.library.flow import draw_sigmas, loss_weights, within_bounds
from sd_scripts.library.losses import diffusion_loss
from sd_scripts.library.noise import TIMESTEPS, expand_to, normal, perturb, timestep_bounds
from sd_scripts.options.flow import FlowOptions
from sd_scripts.options.loss import LossOptions, NoiseOptions
from sd_scripts.options.settings import Settings


def step_inputs(
    batch: Batch, latents: Tensor, settings: Settings, generator: torch.Generator, timesteps: Tensor | None = None
) -> dict[str, Tensor]:
    """All that a step reads, on the latents' device: noisy, target (B, 16, h, w), timesteps (B,) in 0..1, weights.

    `latents` (B, 16, h, w) float32, shifted and scaled.
    """
    noise_options, device = settings[NoiseOptions], latents.device
    noise = normal(latents.shape, generator)
    t = draw_timesteps(latents, settings, generator) if timesteps is None else timesteps.float()
    at = expand_to(t, latents)
    inputs = {
        "noisy": (1 - at) * latents + at * perturb(noise, noise_options, generator),
        "target": noise - latents,
        "timesteps": t,
        "loss_weight": batch.loss_weight.to(device, non_blocking=True),
    }
    if batch.mask is not None:
        inputs["mask"] = batch.mask.to(device, non_blocking=True)
    return inputs


def draw_timesteps(latents: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """(B,) float32, sigma: 0 is the image and 1 noise alone."""
    rows, columns = grid_of(latents)
    sigmas = draw_sigmas(len(latents), settings[FlowOptions], rows * columns, generator)
    return within_bounds(sigmas, *timestep_bounds(settings[NoiseOptions]))


def loss(components: Components, inputs: dict[str, Tensor], text: dict[str, Tensor], settings: Settings) -> Tensor:
    """(B,) float32. `text` as encode_text gives it."""
    objective = settings[FlowOptions]
    noisy, t, loss_weight = inputs["noisy"], inputs["timesteps"], inputs["loss_weight"]
    prediction = predict(
        components.denoiser,
        noisy,
        t,
        text,
        told_guidance(components, t, objective.guidance_scale),
        masked=settings[FluxModelOptions].apply_t5_attn_mask,
    )
    # Only raw compares like with like. The others are the scripts' that people bring settings from.
    if objective.model_prediction_type == "additive":
        prediction = prediction + noisy
    elif objective.model_prediction_type == "sigma_scaled":
        prediction = noisy - expand_to(t, noisy) * prediction
        loss_weight = loss_weight * loss_weights(t, objective.weighting_scheme)
    return diffusion_loss(
        prediction, inputs["target"], t, settings[LossOptions], loss_weight=loss_weight, mask=inputs.get("mask")
    )


def told_guidance(components: Components, timesteps: Tensor, guidance: float) -> Tensor | None:
    """(B,), one for each timestep, made on their device; None for schnell, which takes none."""
    flux: Any = components.denoiser
    return torch.full_like(timesteps, guidance) if flux.shape.guidance else None


def validation_timesteps(settings: Settings) -> list[float]:
    """Four, spread over the range that is trained: 0.2, 0.4, 0.6 and 0.8 for the whole."""
    low, high = timestep_bounds(settings[NoiseOptions])
    return [(low + (high - low) * part / 5) / TIMESTEPS for part in (1, 2, 3, 4)]


def architecture(components: Components) -> str:
    """modelspec.architecture."""
    return f"flux-1-{components.extras['variant']}"


def metadata(settings: Settings, components: Components) -> dict[str, str]:
    """The entries that LoRA files of FLUX.1 have beside those of every family."""
    model, objective = settings[FluxModelOptions], settings[FlowOptions]
    told = {name: getattr(model, name) for name in ("model_type", "apply_t5_attn_mask")}
    told |= {name: getattr(objective, name) for name in OBJECTIVE_METADATA}
    return {f"ss_{name}": str(value) for name, value in told.items()}


OBJECTIVE_METADATA = (
    "weighting_scheme",
    "logit_mean",
    "logit_std",
    "mode_scale",
    "guidance_scale",
    "timestep_sampling",
    "sigmoid_scale",
    "model_prediction_type",
    "discrete_flow_shift",
)
