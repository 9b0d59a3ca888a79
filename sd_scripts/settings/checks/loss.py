"""Checks of noise, timesteps and loss."""

from collections.abc import Callable

from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.spec import Findings
from sd_scripts.settings.checks.run_values import RunValues


def v_prediction_losses(values: RunValues) -> Findings:
    model = values[ModelOptions]
    loss = values[LossOptions]
    if not values.card.has("noise_schedule"):  # without effect
        return
    if loss.scale_v_pred_loss_like_noise_pred and not model.v_parameterization:
        yield (
            "scale_v_pred_loss_like_noise_pred",
            "works only for v-prediction models; set v_parameterization or turn it off",
        )
    if loss.v_pred_like_loss and model.v_parameterization:
        yield "v_pred_like_loss", "works only for models that predict noise; turn it or v_parameterization off"


def snr_huber_schedule_without_noise_schedule(values: RunValues) -> Findings:
    loss = values[LossOptions]
    if values.card.has("noise_schedule"):
        return
    if loss.loss_type in ("huber", "smooth_l1") and loss.huber_schedule == "snr":
        yield (
            "huber_schedule",
            "snr follows Stable Diffusion's noise schedule; set huber_schedule = constant or exponential",
        )


def zero_terminal_snr_without_v_prediction(values: RunValues) -> Findings:
    model = values[ModelOptions]
    noise = values[NoiseOptions]
    if noise.zero_terminal_snr and not model.v_parameterization:
        yield (
            "zero_terminal_snr",
            "is meant for v-prediction models; without v_parameterization the last timestep has no training signal",
        )


def random_strength_without_noise(values: RunValues) -> Findings:
    noise = values[NoiseOptions]
    if noise.noise_offset_random_strength and not noise.noise_offset:
        yield "noise_offset_random_strength", "has no effect without noise_offset"
    if noise.ip_noise_gamma_random_strength and not noise.ip_noise_gamma:
        yield "ip_noise_gamma_random_strength", "has no effect without ip_noise_gamma"


def smaller_size_unsupported(values: RunValues) -> Findings:
    if not values[NoiseOptions].highnoise_resolution or values.card.has("smaller_at_high_noise"):
        return
    if values.card.clips:
        yield "highnoise_resolution", f"{values.card.title} is trained on clips, which have one size; remove it"
    else:
        yield "highnoise_resolution", f"{values.card.title} is not trained by flow matching; remove it"


def smaller_size_of_all_or_none(values: RunValues) -> Findings:
    noise = values[NoiseOptions]
    if not noise.highnoise_resolution:
        if noise.highnoise_sigma != NoiseOptions.highnoise_sigma:
            yield "highnoise_sigma", "has no effect without highnoise_resolution"
        return
    low, high = ((noise.min_timestep or 0) / 1000, (noise.max_timestep or 1000) / 1000)
    if high <= noise.highnoise_sigma:
        yield "highnoise_resolution", f"has no effect: max_timestep = {noise.max_timestep} is not above highnoise_sigma"
    elif low >= noise.highnoise_sigma:
        yield (
            "highnoise_resolution",
            f"applies to all steps, since min_timestep = {noise.min_timestep} is not below highnoise_sigma; resolution "
            "does the same",
        )


READ_WITH: dict[str, tuple[str, Callable[[str], bool]]] = {
    "discrete_flow_shift": ("timestep_sampling", lambda how: how in ("sigma", "shift")),
    "sigmoid_scale": ("timestep_sampling", lambda how: how not in ("sigma", "uniform")),
    "logit_mean": ("weighting_scheme", lambda scheme: scheme == "logit_normal"),
    "logit_std": ("weighting_scheme", lambda scheme: scheme == "logit_normal"),
    "mode_scale": ("weighting_scheme", lambda scheme: scheme == "mode"),
}
"""Numeric option of timestep sampling -> the choice that decides whether it is read, and the values that read it."""


def timestep_options_without_effect(values: RunValues) -> Findings:
    objective = values[FlowOptions]
    defaults = values.card.defaults
    for name, (choice, reads) in READ_WITH.items():
        chosen = getattr(objective, choice)
        if not reads(chosen) and getattr(objective, name) != defaults.get(name, getattr(FlowOptions, name)):
            yield name, f"has no effect with {choice} = {chosen}"
    how = objective.timestep_sampling
    scheme = objective.weighting_scheme
    if scheme in ("logit_normal", "mode") and how != "sigma":
        yield "weighting_scheme", f"{scheme} has no effect with timestep_sampling = {how}; it needs sigma"
    if scheme in ("sigma_sqrt", "cosmap") and objective.model_prediction_type != "sigma_scaled":
        yield (
            "weighting_scheme",
            f"{scheme} has no effect with model_prediction_type = {objective.model_prediction_type}; "
            "it needs sigma_scaled",
        )
