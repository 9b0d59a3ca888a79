"""Learning rate schedules by name, through diffusers' and transformers' own functions, or any class by dotted path."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from sd_scripts.library.key_values import class_by_path, key_values
from sd_scripts.library.optimizers import is_schedule_free
from sd_scripts.options.optimizer import LrSchedulerOptions


def make_scheduler(
    options: LrSchedulerOptions, optimizer: Optimizer, total_steps: int, processes: int = 1
) -> LRScheduler:
    """The schedule over `total_steps` optimizer steps.

    `processes` is how often the schedule is stepped for each: accelerate's wrapper does so once for each process.
    Schedule-free optimizers and Adafactor with relative_step set their own rate and get one that leaves it alone.
    Raises ValueError for an unknown name, arguments that the schedule does not take, and a warm-up where there is none.
    """
    if is_schedule_free(optimizer):
        return _constant(optimizer)
    name, _, start = options.lr_scheduler.partition(":")
    if _sets_own_rate(optimizer):
        name = "adafactor"
    elif name == "adafactor" and not options.lr_scheduler_type:
        raise ValueError(
            "lr_scheduler: adafactor goes only with optimizer_type = Adafactor and its relative_step; choose constant"
        )
    arguments = key_values("lr_scheduler_args", options.lr_scheduler_args)
    warmup = _steps(options.lr_warmup_steps, total_steps) * processes
    decay = _steps(options.lr_decay_steps, total_steps) * processes
    try:
        if options.lr_scheduler_type and name != "adafactor":
            _refuse_warmup(options.lr_scheduler_type, warmup)
            return class_by_path("lr_scheduler_type", options.lr_scheduler_type)(optimizer, **arguments)
        if name in ("constant", "adafactor", "piecewise_constant", "reduce_lr_on_plateau"):
            _refuse_warmup(name, warmup)
        return _named(name, start, options, optimizer, warmup, decay, total_steps * processes, processes, arguments)
    except TypeError as error:
        raise ValueError(f"lr_scheduler_args: {name} does not take them ({error})") from error


def advance(scheduler: LRScheduler, loss: torch.Tensor) -> None:
    """One step of the schedule. Only reduce_lr_on_plateau looks at the loss, and waits for the device to do so."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(float(loss))
    else:
        scheduler.step()


def learning_rates(scheduler: LRScheduler) -> list[float]:
    """The rate of each group as Python numbers; for the named schedules without asking the device for its tensors."""
    if type(scheduler) is LambdaLR:
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        return [float(base) * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    return [float(rate) for rate in scheduler.get_last_lr()]


def _named(
    name: str,
    start: str,
    options: LrSchedulerOptions,
    optimizer: Optimizer,
    warmup: int,
    decay: int,
    total: int,
    processes: int,
    arguments: dict[str, Any],
) -> LRScheduler:
    # Imported here: transformers is slow to import, and a run that stops early should do so quickly.
    from diffusers.optimization import get_piecewise_constant_schedule
    from transformers import optimization as known

    cycles, lowest = options.lr_scheduler_num_cycles, options.lr_scheduler_min_lr_ratio or 0.0
    ramp = {"num_warmup_steps": warmup}
    course = {**ramp, "num_training_steps": total}
    timescale = options.lr_scheduler_timescale
    makers: dict[str, tuple[Callable[..., LRScheduler], dict[str, Any]]] = {
        "constant": (_constant, {}),
        "constant_with_warmup": (known.get_constant_schedule_with_warmup, ramp),
        "linear": (known.get_linear_schedule_with_warmup, course),
        "cosine": (known.get_cosine_schedule_with_warmup, course),
        "cosine_with_restarts": (
            known.get_cosine_with_hard_restarts_schedule_with_warmup,
            {**course, "num_cycles": cycles},
        ),
        "polynomial": (
            known.get_polynomial_decay_schedule_with_warmup,
            {**course, "power": options.lr_scheduler_power},
        ),
        "inverse_sqrt": (
            known.get_inverse_sqrt_schedule,
            {**ramp, "timescale": timescale * processes if timescale else None},
        ),
        # These two count whole waves; one cycle of ours goes down only, half a wave.
        "cosine_with_min_lr": (
            known.get_cosine_with_min_lr_schedule_with_warmup,
            {**course, "num_cycles": cycles / 2, "min_lr_rate": lowest},
        ),
        "warmup_stable_decay": (
            known.get_wsd_schedule,
            {**course, "num_decay_steps": decay, "num_cycles": cycles / 2, "min_lr_ratio": lowest},
        ),
        "piecewise_constant": (get_piecewise_constant_schedule, {}),
        "reduce_lr_on_plateau": (ReduceLROnPlateau, {}),
        "adafactor": (known.AdafactorSchedule, {"initial_lr": float(start or 0)}),
    }
    if name not in makers:
        raise ValueError(f"lr_scheduler: {name!r} is not one of {', '.join(makers)}")
    make, own = makers[name]
    return make(optimizer, **{**own, **arguments})


def _constant(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda _: 1.0)


def _steps(given: float, total: int) -> int:
    """Below 1 a share of all steps."""
    return int(given * total) if given < 1 else int(given)


def _refuse_warmup(name: str, warmup: int) -> None:
    if warmup:
        raise ValueError(f"lr_warmup_steps: {name} has no warm-up; set it to 0, or lr_scheduler = constant_with_warmup")


def _sets_own_rate(optimizer: Optimizer) -> bool:
    """Adafactor with relative_step."""
    return bool(optimizer.defaults.get("relative_step"))
