"""SDXL's training objective: predict the noise, or the velocity, in noisy latents."""

from typing import cast

import torch
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.plan.buckets import Size, crop_ltrb
from sd_scripts.data.plan.dataset import Item
from sd_scripts.families.common.family import Components, StepInputs
from sd_scripts.families.common.objective import ObjectiveOptions, loss_inputs
from sd_scripts.families.sdxl.keys import VAE_SCALE
from sd_scripts.families.sdxl.unet import predict
from sd_scripts.library.diffusion.losses import per_sample_loss
from sd_scripts.library.diffusion.noise import draw_noise, draw_timesteps, noise_schedule, perturb, timestep_bounds
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import NoiseOptions


def conditioning(item: Item, flipped: bool) -> dict[str, Tensor]:
    """Return sizes (6,) int64: height and width of the image, top and left of the crop, height and width of the
    bucket."""
    (width, height) = item.size
    bucket = item.fit.bucket
    top, left = crop_top_left(bucket.size, item.size, flipped=flipped)
    return {"sizes": torch.tensor([height, width, top, left, bucket.height, bucket.width])}


def crop_top_left(bucket: Size, image: Size, *, flipped: bool) -> tuple[int, int]:
    """Return top and left of the crop conditioning; for a flipped image, left is measured from the right edge."""
    left, top, right, _ = crop_ltrb(bucket, image)
    return int(top), int(bucket[0] - right if flipped else left)


def step_inputs(
    batch: Batch, latents: Tensor, options: ObjectiveOptions, generator: torch.Generator, timesteps: Tensor | None
) -> dict[str, Tensor]:
    """Return noisy and target (B, 4, h, w), timesteps (B,), sizes (B, 6) and loss_inputs, on the latents' device.

    `latents` (B, 4, h, w) float32, not yet scaled.
    """
    device = latents.device
    schedule = noise_schedule(device, options.noise.zero_terminal_snr)
    latents = latents * VAE_SCALE
    noise = draw_noise(latents, options.noise, generator)
    t = draw_timesteps(len(latents), options.noise, generator) if timesteps is None else timesteps.long()
    noisy = schedule.add_noise(latents, perturb(noise, options.noise, generator), t)
    target = schedule.velocity(latents, noise, t) if cast(ModelOptions, options.family).v_parameterization else noise
    return {
        "noisy": noisy,
        "target": target,
        "timesteps": t,
        "sizes": batch.conditioning["sizes"].to(device, torch.float32, non_blocking=True),
        **loss_inputs(batch, device),
    }


def loss(components: Components, inputs: StepInputs, options: ObjectiveOptions) -> Tensor:
    """Return the loss of each image (B,) float32."""
    model = inputs.model
    text = inputs.text
    dtype = next(components.denoiser.parameters()).dtype
    context = torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=-1).to(dtype)  # (B, T, 2048)
    prediction = predict(
        components.denoiser,
        model["noisy"].to(dtype),
        model["timesteps"],
        context,
        text["pool2"].to(dtype),
        model["sizes"],
    )
    return per_sample_loss(
        prediction,
        model["target"],
        model["timesteps"],
        noise_schedule(model["noisy"].device, options.noise.zero_terminal_snr),
        options.loss,
        loss_weight=model["loss_weight"],
        mask=model.get("mask"),
        v_parameterization=cast(ModelOptions, options.family).v_parameterization,
    )


def validation_timesteps(noise: NoiseOptions) -> list[float]:
    """Return four, evenly spaced in the range that is trained: 200, 400, 600 and 800 of the whole."""
    low, high = timestep_bounds(noise)
    return [low + (high - low) * part // 5 for part in (1, 2, 3, 4)]
