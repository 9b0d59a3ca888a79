"""Options: noise, loss."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.dataset import resolution_problem
from sd_scripts.options.spec import OptionGroup, count, option, optional, switch


class NoiseOptions(OptionGroup, title="Noise"):
    """The noise added to the latents, and the range of timesteps."""

    noise_offset: float | None = optional(
        "Offset the noise of each latent channel by a random amount of this strength, so that the model can "
        "learn very dark and very bright images. Around 0.05.",
        within=(0.0, 10.0),
        needs="noise_schedule",
    )
    noise_offset_random_strength: bool = switch(
        "Draw the strength at random for each image, from 0 to noise_offset.", needs="noise_schedule"
    )
    adaptive_noise_scale: float | None = optional(
        "Add the mean of the latents times this to noise_offset.", within=(-10.0, 10.0), needs="noise_schedule"
    )
    multires_noise_iterations: int | None = count(
        "Add this many layers of increasingly coarse noise, another way to train dark and bright images. 6 to 10 is "
        "usual; 0 is off.",
        most=64,
        needs="noise_schedule",
    )
    multires_noise_discount: float = option(
        0.3, "Strength of each coarser layer, relative to the one before.", within=(0.0, 1.0), needs="noise_schedule"
    )
    ip_noise_gamma: float | None = optional(
        "Add a little extra noise to the model's input, which makes training more robust. Around 0.1.",
        label="Input perturbation",
        within=(0.0, 10.0),
    )
    ip_noise_gamma_random_strength: bool = switch(
        "Draw the strength at random each time, from 0 to ip_noise_gamma.", label="Random input perturbation"
    )
    zero_terminal_snr: bool = switch(
        "Make the last timestep pure noise. For v-prediction models that were trained that way.",
        label="Zero terminal SNR",
        needs="noise_schedule",
    )
    min_timestep: int | None = optional(
        "Lowest timestep to train, 0 to 999; low ones are fine detail.", within=(0, 999)
    )
    max_timestep: int | None = optional(
        "Train only timesteps below this, 1 to 1000; high ones are composition.", within=(1, 1000)
    )
    highnoise_resolution: str | None = optional(
        "Train steps at high noise at a smaller size, which makes them faster: one number for a square, or "
        "width,height. Like resolution with buckets it sets the area, not the shape, such as 768 for a resolution of "
        "1024. Shapes can get worse: compare images. Default: all steps at the size of the bucket.",
        label="Resolution at high noise",
        suggestions=("768", "896", "512"),
        placeholder="768",
        needs="smaller_at_high_noise",
    )
    highnoise_sigma: float = option(
        0.7,
        "Noise level above which highnoise_resolution applies, of 1.",
        label="High noise above",
        within=(0.01, 0.99),
        needs="smaller_at_high_noise",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.adaptive_noise_scale and not self.noise_offset:
            yield "adaptive_noise_scale", "needs noise_offset, which it adds to"
        if (self.min_timestep or 0) > (self.max_timestep or 1000):
            yield "min_timestep", f"{self.min_timestep} is above max_timestep = {self.max_timestep}; lower it"
        if self.highnoise_resolution and (why := resolution_problem(self.highnoise_resolution)):
            yield "highnoise_resolution", why


class LossOptions(OptionGroup, title="Loss"):
    """How the prediction is compared with the target, and how timesteps are weighted."""

    loss_type: Literal["l1", "l2", "huber", "smooth_l1"] = option(
        "l2", "Loss function: l2 is usual; huber and smooth_l1 reduce the effect of outliers."
    )
    huber_schedule: Literal["constant", "exponential", "snr"] = option(
        "snr", "How huber_c changes with the timestep, for huber and smooth_l1."
    )
    huber_c: float = option(
        0.1, "Difference at which huber and smooth_l1 turn from quadratic to linear.", within=(1e-06, 1000.0)
    )
    huber_scale: float = option(1.0, "Multiplies huber_c, for constant and exponential.", within=(1e-06, 1000.0))
    min_snr_gamma: float | None = optional(
        "Weight easy timesteps less, which makes training more stable. 5 is usual; 0 is off.",
        label="Min-SNR gamma",
        within=(0.0, 100.0),
        zero_is_off=True,
        needs="noise_schedule",
    )
    scale_v_pred_loss_like_noise_pred: bool = switch(
        "Weight the loss of a v-prediction model like a noise-prediction model's.",
        label="Scale v-prediction loss",
        needs="noise_schedule",
    )
    v_pred_like_loss: float | None = optional(
        "Add a v-prediction-like loss with this weight. Not for v-prediction models.",
        label="v-prediction-like loss",
        within=(0.0, 100.0),
        zero_is_off=True,
        needs="noise_schedule",
    )
    debiased_estimation_loss: bool = switch(
        "Weight timesteps by 1/sqrt(SNR). An alternative to min_snr_gamma; do not use both.",
        label="Debiased estimation",
        needs="noise_schedule",
    )
