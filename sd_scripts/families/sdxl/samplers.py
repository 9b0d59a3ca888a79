"""The values of sample_sampler as schedulers of diffusers on SDXL's noise schedule."""

import inspect
from typing import Any

import numpy as np
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2AncestralDiscreteScheduler,
    KDPM2DiscreteScheduler,
    PNDMScheduler,
)
from diffusers.schedulers.scheduling_lms_discrete import LMSDiscreteScheduler

from sd_scripts.library.diffusion.noise import FIRST_BETA, LAST_BETA, TIMESTEPS


class LinearMultistep(LMSDiscreteScheduler):
    """LMS without SciPy: its coefficients are integrals of polynomials, which have a closed form."""

    def get_lms_coefficient(self, order: int, t: int, current_order: int) -> float:
        """Integrate over step `t` the Lagrange polynomial that is 1 at the `current_order`-th last sigma."""
        sigmas = [float(self.sigmas[t - k]) for k in range(order)]
        others = [sigma for k, sigma in enumerate(sigmas) if k != current_order]
        basis = np.poly1d(others, r=True) / np.prod([sigmas[current_order] - sigma for sigma in others])
        integral = basis.integ()
        return float(integral(float(self.sigmas[t + 1])) - integral(sigmas[0]))


SDXL: dict[str, Any] = {
    "num_train_timesteps": TIMESTEPS,
    "beta_start": FIRST_BETA,
    "beta_end": LAST_BETA,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}
SAMPLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ddim": (DDIMScheduler, {"clip_sample": False, "set_alpha_to_one": False}),
    "pndm": (PNDMScheduler, {"skip_prk_steps": True}),
    "lms": (LinearMultistep, {}),
    "euler": (EulerDiscreteScheduler, {}),
    "euler_a": (EulerAncestralDiscreteScheduler, {}),
    "heun": (HeunDiscreteScheduler, {}),
    "dpm_2": (KDPM2DiscreteScheduler, {}),
    "dpm_2_a": (KDPM2AncestralDiscreteScheduler, {}),
    "dpmsolver": (DPMSolverMultistepScheduler, {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min"}),
    "dpmsolver++": (DPMSolverMultistepScheduler, {}),
    "dpmsingle": (DPMSolverSinglestepScheduler, {}),
}


def make_sampler(name: str, *, velocity: bool, zero_terminal_snr: bool) -> Any:
    """Return a scheduler of diffusers; `k_euler` is an alias of `euler`, and so on."""
    plain = name.removeprefix("k_")
    if plain not in SAMPLERS:
        raise ValueError(f"sample_sampler: '{name}' is not one of {', '.join(SAMPLERS)}")
    kind, own = SAMPLERS[plain]
    config = {**SDXL, "prediction_type": "v_prediction" if velocity else "epsilon", **own}
    if zero_terminal_snr:
        config |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    accepted = inspect.signature(kind.__init__).parameters
    if kind is LinearMultistep:
        accepted = inspect.signature(LMSDiscreteScheduler.__init__).parameters
    return kind(**{key: value for key, value in config.items() if key in accepted})
