"""FLUX.1's training objective: flow matching, in which the model predicts the velocity from image to noise."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions
from sd_scripts.families.flux.card.options import FluxModelOptions
from sd_scripts.library.diffusion.dit_layers import grid_of, pack, unpack
from sd_scripts.library.diffusion.flow_timesteps import loss_weights
from sd_scripts.library.diffusion.losses import diffusion_loss
from sd_scripts.library.diffusion.noise import expand_to

OBJECTIVE_METADATA = (
    *("weighting_scheme", "logit_mean", "logit_std", "mode_scale", "guidance_scale"),
    *("timestep_sampling", "sigmoid_scale", "model_prediction_type", "discrete_flow_shift"),
)


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each image (B,) float32."""
    noisy, t = inputs.model["noisy"], inputs.model["timesteps"]
    prediction = predict(
        components.denoiser,
        noisy,
        t,
        inputs.text,
        guidance_vector(components, t, options.flow.guidance_scale),
        masked=cast(FluxModelOptions, options.family).apply_t5_attn_mask,
        controls=inputs.controls,
    )
    return prediction_loss(prediction, inputs.model, options)


def prediction_loss(prediction: Tensor, inputs: Mapping[str, Tensor], options: ObjectiveOptions) -> Tensor:
    """Return the loss of each image (B,) float32, of the model's output (B, 16, h, w), read as model_prediction_type
    specifies, and what flow_inputs returned."""
    noisy, t, loss_weight = inputs["noisy"], inputs["timesteps"], inputs["loss_weight"]
    # only raw compares velocities; the others exist for settings written for sd-scripts
    if options.flow.model_prediction_type == "additive":
        prediction = prediction + noisy
    elif options.flow.model_prediction_type == "sigma_scaled":
        prediction = noisy - expand_to(t, noisy) * prediction
        loss_weight = loss_weight * loss_weights(t, options.flow.weighting_scheme)
    return diffusion_loss(
        prediction, inputs["target"], t, options.loss, loss_weight=loss_weight, mask=inputs.get("mask")
    )


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    timesteps: Tensor,
    text: dict[str, Tensor],
    guidance: Tensor | None,
    *,
    masked: bool,
    controls: Sequence[Tensor] = (),
) -> Tensor:
    """Predict the velocity, noise - image, (B, 16, h, w) float32.

    noisy (B, 16, h, w), timesteps (B,) float32 in 0..1, text as returned by encode_text, guidance (B,) or None for
    schnell; `masked`: attention ignores the padding of the text; `controls`: latents of the control images, each
    (B, 16, h', w').
    """
    images = (noisy, *controls)
    mask = text["t5_attn_mask"] if masked else None
    flux: Any = transformer
    tokens = torch.cat([pack(image) for image in images], dim=1)
    grid, *others = (grid_of(image) for image in images)
    tokens = flux(tokens, text["t5_out"], text["l_pooled"], timesteps, guidance, grid, mask, tuple(others))
    return unpack(tokens, grid).float()


def guidance_vector(components: Components, timesteps: Tensor, guidance: float) -> Tensor | None:
    """Return the guidance of each image (B,), on the device of the timesteps; None for schnell, which takes none."""
    flux: Any = components.denoiser
    return torch.full_like(timesteps, guidance) if flux.shape.guidance else None


def architecture(components: Components) -> str:
    """Return modelspec.architecture."""
    return f"flux-1-{components.extras['variant']}"
