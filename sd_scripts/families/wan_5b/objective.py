"""Wan 2.2 5B's training objective: Wan's, but the first frame of some clips is given, without noise at timestep 0."""

from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions, flow_inputs, flow_loss
from sd_scripts.families.wan.objective import predict
from sd_scripts.families.wan.sampling import with_start
from sd_scripts.families.wan_5b.card.options import Wan5BOptions
from sd_scripts.library.diffusion.noise import expand_to


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    """Return the inputs of flow matching for latents (B, 48, f, h, w). For clips with first_frame_conditioning_p also
    given (B,) bool: whether the first frame is, whose loss is zero and counts in no mean."""
    inputs = flow_inputs(batch, latents, options, generator, timesteps)
    share = cast(Wan5BOptions, options.family).first_frame_conditioning_p
    frames = latents.shape[2]
    if not share or frames == 1:
        return inputs
    given = (torch.rand(len(latents), generator=generator, device=generator.device) < share).to(latents.device)
    first = torch.where(expand_to(given, latents), latents, inputs["noisy"])[:, :, :1]
    weight = torch.where(given, frames / (frames - 1), 1.0)
    return inputs | {
        "noisy": with_start(inputs["noisy"], first),
        "loss_weight": inputs["loss_weight"] * weight,
        "given": given,
    }


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each clip (B,) float32."""
    model = inputs.model
    times, given = model["timesteps"], model.get("given")
    if given is None:
        velocity = predict(components.denoiser, model["noisy"], times, inputs.text, {})
        return flow_loss(velocity, model, options)
    of_frames = times[:, None].repeat(1, model["noisy"].shape[2])  # (B, f)
    of_frames[:, 0] = times.masked_fill(given, 0)
    velocity = predict(components.denoiser, model["noisy"], of_frames, inputs.text, {})
    first = torch.where(expand_to(given, velocity), model["target"], velocity)[:, :, :1]
    return flow_loss(with_start(velocity, first), model, options)
