"""Compute one loss per image from prediction and target: element loss, mask, mean, timestep weights.

Pure tensor functions of static shape: nothing here waits for the device, so that a step can be compiled and captured.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from sd_scripts.library.diffusion.noise import TIMESTEPS, NoiseSchedule, expand_to
from sd_scripts.options.optimization.loss import LossOptions

SNR_LIMIT = 1000.0
"""Weights that divide by the SNR clamp it here, or the first timesteps would not count."""

HUBER_LOSSES = ("huber", "smooth_l1")


def per_sample_loss(
    prediction: Tensor,
    target: Tensor,
    timesteps: Tensor,
    schedule: NoiseSchedule,
    options: LossOptions,
    *,
    loss_weight: Tensor,
    mask: Tensor | None = None,
    v_parameterization: bool = False,
) -> Tensor:
    """Return the loss of each image (B,), float32, weighted by the SNR of its timestep as for Stable Diffusion.

    Prediction, target, loss_weight and mask as `diffusion_loss` takes them, timesteps (B,) int64.
    """
    sigmas = schedule.sigmas[timesteps]
    loss = diffusion_loss(
        prediction, target, timesteps / TIMESTEPS, options, loss_weight=loss_weight, mask=mask, sigmas=sigmas
    )
    return apply_snr_weighting(loss, schedule.snr[timesteps], options, v_parameterization)


def diffusion_loss(
    prediction: Tensor,
    target: Tensor,
    timesteps: Tensor,
    options: LossOptions,
    *,
    loss_weight: Tensor,
    mask: Tensor | None = None,
    sigmas: Tensor | None = None,
) -> Tensor:
    """Return the loss of each image (B,), float32, as loss_type defines it.

    Prediction and target are (B, C, *S), loss_weight (B,), timesteps and sigmas as huber_c_at takes them; mask is
    (B, 1, any, any) in 0..1, the same for all frames of a clip, and multiplies the loss at each pixel, without
    rescaling for the masked area.
    """
    width = huber_c_at(timesteps, options, sigmas) if options.loss_type in HUBER_LOSSES else None
    loss = element_loss(prediction.float(), target.float(), options.loss_type, width)
    if mask is not None:
        mask = mask.view(*mask.shape[:2], *[1] * (loss.dim() - mask.dim()), *mask.shape[2:])
        loss = loss * functional.interpolate(mask.float(), size=loss.shape[2:], mode="area")
    return loss.mean(dim=tuple(range(1, loss.dim()))) * loss_weight


def element_loss(prediction: Tensor, target: Tensor, loss_type: str, width: Tensor | None = None) -> Tensor:
    """Return the loss of each element (B, ...). huber and smooth_l1 are quadratic up to a distance `width` (B,)."""
    if loss_type == "l1":
        return (prediction - target).abs()
    squared = (prediction - target) ** 2
    if loss_type == "l2":
        return squared
    assert width is not None, loss_type
    width = expand_to(width, squared)
    pseudo_huber = 2 * ((squared + width**2).sqrt() - width)
    return pseudo_huber * width if loss_type == "huber" else pseudo_huber


def huber_c_at(timesteps: Tensor, options: LossOptions, sigmas: Tensor | None = None) -> Tensor:
    """Return huber_c (B,) at timesteps (B,) in 0..1.

    The snr schedule needs the sigmas (B,) of Stable Diffusion and ignores huber_scale, as sd-scripts does; families
    without sigmas reject it earlier.
    """
    c = options.huber_c
    if options.huber_schedule == "constant":
        return torch.full_like(timesteps, c * options.huber_scale)
    if options.huber_schedule == "exponential":
        return torch.exp(math.log(c) * timesteps) * options.huber_scale
    assert sigmas is not None, "huber_schedule: snr"
    return (1 - c) / (1 + sigmas) ** 2 + c


def apply_snr_weighting(loss: Tensor, snr: Tensor, options: LossOptions, v_parameterization: bool) -> Tensor:
    """Weight losses (B,) by the SNR (B,) of their timesteps; the options apply in the order of sd-scripts."""
    limited = snr.clamp(max=SNR_LIMIT)
    if options.min_snr_gamma:
        loss = loss * snr.clamp(max=options.min_snr_gamma) / (snr + 1 if v_parameterization else snr)
    if options.scale_v_pred_loss_like_noise_pred:
        loss = loss * limited / (limited + 1)
    if options.v_pred_like_loss:
        loss = loss + loss * (limited + 1) / limited * options.v_pred_like_loss
    if options.debiased_estimation_loss:
        loss = loss / (limited + 1 if v_parameterization else limited.sqrt())
    return loss
