"""The learning rate schedules that have a name, what makes each, and from which values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Schedule:
    """A learning rate schedule."""

    path: str
    """Dotted path of the class or function that makes it of the optimizer and `arguments`."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Argument -> where its value comes from, a key of schedule_values in library/optim/lr_schedulers.py."""
    ignores_warmup: bool = False
    """It has no warm-up, but sd-scripts accepts one, and existing files have it."""

    @property
    def has_warmup(self) -> bool:
        return "num_warmup_steps" in self.arguments

    @property
    def spans_run(self) -> bool:
        """Whether its course depends on the length of the run."""
        return "num_training_steps" in self.arguments


_WARMUP = {"num_warmup_steps": "warmup"}
_COURSE = {**_WARMUP, "num_training_steps": "total"}
_DIFFUSERS = "diffusers.optimization"
_TRANSFORMERS = "transformers.optimization"
"""It imports bitsandbytes and half of the compiler where peft is installed; diffusers' equal functions do not."""

SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(f"{_DIFFUSERS}.get_constant_schedule"),
    "constant_with_warmup": Schedule(f"{_DIFFUSERS}.get_constant_schedule_with_warmup", _WARMUP),
    "linear": Schedule(f"{_DIFFUSERS}.get_linear_schedule_with_warmup", _COURSE),
    "cosine": Schedule(f"{_DIFFUSERS}.get_cosine_schedule_with_warmup", _COURSE),
    "cosine_with_restarts": Schedule(
        f"{_DIFFUSERS}.get_cosine_with_hard_restarts_schedule_with_warmup", {**_COURSE, "num_cycles": "cycles"}
    ),
    "polynomial": Schedule(f"{_DIFFUSERS}.get_polynomial_decay_schedule_with_warmup", {**_COURSE, "power": "power"}),
    "inverse_sqrt": Schedule(f"{_TRANSFORMERS}.get_inverse_sqrt_schedule", {**_WARMUP, "timescale": "timescale"}),
    # these two count whole waves; one cycle of ours goes down only, half a wave
    "cosine_with_min_lr": Schedule(
        f"{_TRANSFORMERS}.get_cosine_with_min_lr_schedule_with_warmup",
        {**_COURSE, "num_cycles": "half_cycles", "min_lr_rate": "min_lr_ratio"},
    ),
    "warmup_stable_decay": Schedule(
        f"{_TRANSFORMERS}.get_wsd_schedule",
        {**_COURSE, "num_decay_steps": "decay", "num_cycles": "half_cycles", "min_lr_ratio": "min_lr_ratio"},
    ),
    "reduce_lr_on_plateau": Schedule("torch.optim.lr_scheduler.ReduceLROnPlateau"),
    "piecewise_constant": Schedule(f"{_DIFFUSERS}.get_piecewise_constant_schedule", ignores_warmup=True),
    "adafactor": Schedule("sd_scripts.library.optim.lr_schedulers.AdafactorRate", {"shown_at_first": "start"}),
}
