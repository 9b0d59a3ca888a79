"""Options: noise, loss."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class NoiseOptions(OptionGroup, title="Noise"):
    """What is added to the latents, and at which timesteps."""

    noise_offset: float | None = option(None, "Channel-wise constant noise strength.", families=("sdxl",))
    noise_offset_random_strength: bool = option(False, "Draw the offset strength uniformly up to noise_offset.")
    adaptive_noise_scale: float | None = option(None, "Adds mean latent times this to noise_offset.")
    multires_noise_iterations: int | None = option(None, "Pyramid noise levels.", families=("sdxl",))
    multires_noise_discount: float = option(0.3, "Per-level discount of pyramid noise.")
    ip_noise_gamma: float | None = option(None, "Input perturbation strength.")
    ip_noise_gamma_random_strength: bool = option(False, "Draw that strength uniformly up to the value.")
    zero_terminal_snr: bool = option(False, "Rescale betas to zero terminal SNR.", families=("sdxl",))
    min_timestep: int | None = option(None, "Lowest sampled timestep.", families=("sdxl",))
    max_timestep: int | None = option(None, "Upper bound of sampled timesteps.", families=("sdxl",))


class LossOptions(OptionGroup, title="Loss"):
    """How the prediction is compared with the target, and which timesteps weigh more."""

    loss_type: Literal["l1", "l2", "huber", "smooth_l1"] = option("l2", "Loss function.")
    huber_schedule: Literal["constant", "exponential", "snr"] = option("snr", "How huber_c varies with the timestep.")
    huber_c: float = option(0.1, "Huber threshold.")
    huber_scale: float = option(1.0, "Huber scale factor.")
    min_snr_gamma: float | None = option(None, "Min-SNR weighting gamma (no effect for FLUX).")
    scale_v_pred_loss_like_noise_pred: bool = option(False, "Scale v loss to noise-prediction magnitude.")
    v_pred_like_loss: float | None = option(None, "Extra v-like loss factor.")
    debiased_estimation_loss: bool = option(False, "1/sqrt(SNR) weighting (no effect for FLUX).")
