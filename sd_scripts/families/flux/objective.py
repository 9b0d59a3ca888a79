"""FLUX.1's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import flow_inputs
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.families.flux.packing import predict
from sd_scripts.library.diffusion.dit_layers import grid_of
from sd_scripts.library.diffusion.flow_timesteps import loss_weights
from sd_scripts.library.diffusion.losses import diffusion_loss
from sd_scripts.library.diffusion.noise import TIMESTEPS, expand_to, timestep_bounds
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.settings.settings import Settings

OBJECTIVE_METADATA = (
    *("weighting_scheme", "logit_mean", "logit_std", "mode_scale", "guidance_scale"),
    *("timestep_sampling", "sigmoid_scale", "model_prediction_type", "discrete_flow_shift"),
)


def step_inputs(
    batch: Batch, latents: Tensor, settings: Settings, generator: torch.Generator, timesteps: Tensor | None = None
) -> dict[str, Tensor]:
    """As flow_inputs; `latents` (B, 16, h, w) float32, shifted and scaled."""
    rows, columns = grid_of(latents)
    return flow_inputs(
        batch, latents, settings[FlowOptions], settings[NoiseOptions], generator, timesteps, tokens=rows * columns
    )


def loss(components: Components, inputs: StepInputs, settings: Settings) -> Tensor:
    """Return the loss of each image (B,) float32."""
    objective = settings[FlowOptions]
    model = inputs.model
    noisy, t, loss_weight = model["noisy"], model["timesteps"], model["loss_weight"]
    prediction = predict(
        components.denoiser,
        noisy,
        t,
        inputs.text,
        guidance_vector(components, t, objective.guidance_scale),
        masked=settings[FluxModelOptions].apply_t5_attn_mask,
        controls=inputs.controls,
    )
    # only raw compares velocities; the others exist for settings written for sd-scripts
    if objective.model_prediction_type == "additive":
        prediction = prediction + noisy
    elif objective.model_prediction_type == "sigma_scaled":
        prediction = noisy - expand_to(t, noisy) * prediction
        loss_weight = loss_weight * loss_weights(t, objective.weighting_scheme)
    return diffusion_loss(
        prediction, model["target"], t, settings[LossOptions], loss_weight=loss_weight, mask=model.get("mask")
    )


def guidance_vector(components: Components, timesteps: Tensor, guidance: float) -> Tensor | None:
    """Return the guidance of each image (B,), on the device of the timesteps; None for schnell, which takes none."""
    flux: Any = components.denoiser
    return torch.full_like(timesteps, guidance) if flux.shape.guidance else None


def validation_timesteps(noise: NoiseOptions) -> list[float]:
    """Return four, evenly spaced in the range that is trained: 0.2, 0.4, 0.6 and 0.8 of the whole."""
    low, high = timestep_bounds(noise)
    return [(low + (high - low) * part / 5) / TIMESTEPS for part in (1, 2, 3, 4)]


def architecture(components: Components) -> str:
    """Return modelspec.architecture."""
    return f"flux-1-{components.extras['variant']}"


def metadata(settings: Settings, components: Components) -> dict[str, str]:
    """Return the metadata that LoRA files of FLUX.1 have in addition to that of every family."""
    model, objective = settings[FluxModelOptions], settings[FlowOptions]
    values = {name: getattr(model, name) for name in ("model_type", "apply_t5_attn_mask")}
    values |= {name: getattr(objective, name) for name in OBJECTIVE_METADATA}
    return {f"ss_{name}": str(value) for name, value in values.items()}
