"""Learning rate schedules by name, through diffusers' and transformers' own functions, or any class by dotted path."""

import contextlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from sd_scripts.library.optim.key_values import class_by_path, key_values
from sd_scripts.library.optim.optimizers import is_schedule_free, make_optimizer, set_hyperparameters, updater
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import optimizer_name
from sd_scripts.options.optimization.schedule_table import SCHEDULES, Schedule
from sd_scripts.options.spec import WrongValue


class AdafactorRate(LRScheduler):
    """Reports the rate that Adafactor sets itself, of the first parameter of each group.

    transformers' class takes a parameter with a gradient for one that was stepped; ours have gradients from the start.
    """

    def __init__(self, optimizer: Optimizer, shown_at_first: float):
        self.shown_at_first = shown_at_first
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [self._rate(group) for group in self.optimizer.param_groups]

    def _rate(self, group: dict[str, Any]) -> float:
        state = self.optimizer.state.get(group["params"][0])
        return float(updater(self.optimizer)._get_lr(group, state)) if state else self.shown_at_first  # type: ignore[attr-defined]


def make_scheduler(options: LrSchedulerOptions, optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """Return the schedule over `total_steps` optimizer steps.

    Schedule-free optimizers and Adafactor with relative_step set their own rate; their schedule does not change it.
    Raises ValueError for an unknown name, arguments that the schedule does not accept, and an unsupported warm-up.
    """
    if is_schedule_free(optimizer):
        return LambdaLR(optimizer, lambda _: 1.0)
    name, make, known = _choose(options, optimizer)
    values = schedule_values(options, total_steps)
    if values["warmup"] and not (known.has_warmup or known.ignores_warmup):
        raise ValueError(
            f"lr_warmup_steps: {name} has no warm-up; set it to 0, or set lr_scheduler = constant_with_warmup"
        )
    arguments = {argument: values[value] for argument, value in known.arguments.items()}
    arguments |= key_values("lr_scheduler_args", options.lr_scheduler_args)
    try:
        return make(optimizer, **arguments)
    except TypeError as error:
        raise ValueError(f"lr_scheduler_args: {name} does not accept these arguments ({error})") from error


def schedule_values(options: LrSchedulerOptions, total_steps: int) -> dict[str, Any]:
    """Return the values that a Schedule's arguments name; steps are optimizer steps."""
    return {
        "total": total_steps,
        "warmup": _steps(options.lr_warmup_steps, total_steps),
        "decay": _steps(options.lr_decay_steps, total_steps),
        "cycles": options.lr_scheduler_num_cycles,
        "half_cycles": options.lr_scheduler_num_cycles / 2,
        "power": options.lr_scheduler_power,
        "timescale": options.lr_scheduler_timescale or None,
        "min_lr_ratio": options.lr_scheduler_min_lr_ratio or 0.0,
        "start": _shown_at_first(options.lr_scheduler),
    }


def dry_run(optimizer: OptimizerOptions, scheduler: LrSchedulerOptions) -> list[str]:
    """Make both for a single number, so that errors in them are found before a model is loaded.

    Raises ValueError as make_optimizer and make_scheduler do; returns warnings, one sentence each.
    """
    with _as_value_error(f"optimizer_type, optimizer_args: {optimizer_name(optimizer.optimizer_type)}"):
        instance = make_optimizer(optimizer, [{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    with _as_value_error(f"lr_scheduler_args: {scheduler.lr_scheduler_type or scheduler.lr_scheduler}"):
        schedule = make_scheduler(scheduler, instance, total_steps=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that the optimizer has not stepped
            advance(schedule, torch.tensor(1.0))
    if is_schedule_free(instance) and (scheduler.lr_scheduler != "constant" or scheduler.lr_warmup_steps):
        return [
            f"lr_scheduler, lr_warmup_steps: {type(instance).__name__} ignores them, since it needs no schedule; "
            "its own warm-up is warmup_steps=100 in optimizer_args"
        ]
    return []


@contextlib.contextmanager
def _as_value_error(what: str) -> Iterator[None]:
    """Turn any error into a ValueError of one sentence: wrong values fail anywhere in other packages' code."""
    try:
        yield
    except (ValueError, WrongValue):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"{what} cannot be created with these arguments ({type(error).__name__}: {first})") from error


def advance(scheduler: LRScheduler, loss: torch.Tensor) -> None:
    """Step the schedule. Only reduce_lr_on_plateau reads the loss, for which it waits for the device."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(float(loss))
    else:
        scheduler.step()


ON_PLATEAU = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""State of reduce_lr_on_plateau that does not depend on the learning rate."""


def advance_to(scheduler: LRScheduler, step: int) -> None:
    """Advance a new schedule by `step` steps."""
    if isinstance(scheduler, ReduceLROnPlateau):  # it depends on losses, not on steps
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch expects an optimizer step before each
        for _ in range(step):
            scheduler.step()


def resume_plateau(scheduler: ReduceLROnPlateau, state: Mapping[str, Any], rates: Sequence[float]) -> None:
    """Restore reduce_lr_on_plateau from its saved state, with its reductions relative to `rates`."""
    vars(scheduler).update({name: state[name] for name in ON_PLATEAU if name in state})
    groups = scheduler.optimizer.param_groups
    resumed = [
        {"lr": float(group["lr"]) * float(lowered) / began if began else 0.0}
        for group, lowered, began in zip(groups, state["_last_lr"], rates, strict=True)
    ]
    set_hyperparameters(scheduler.optimizer, resumed)


def learning_rates(scheduler: LRScheduler) -> list[float]:
    """Return each group's rate as a Python number; the named schedules do not read tensors from the device."""
    if type(scheduler) is LambdaLR:
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        return [float(base) * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    return [float(rate) for rate in scheduler.get_last_lr()]


def _choose(options: LrSchedulerOptions, optimizer: Optimizer) -> tuple[str, Callable[..., LRScheduler], Schedule]:
    """Return the schedule's name, class or function, and entry in the table."""
    name = options.lr_scheduler.partition(":")[0]
    if optimizer.defaults.get("relative_step"):  # Adafactor, which sets its own rate
        return "adafactor", AdafactorRate, SCHEDULES["adafactor"]
    if options.lr_scheduler_type:
        named = options.lr_scheduler_type  # without a dot it is one of PyTorch's, as in sd-scripts
        path = named if "." in named else f"torch.optim.lr_scheduler.{named}"
        return named, class_by_path("lr_scheduler_type", path), Schedule(path)
    if name == "adafactor":
        raise ValueError(
            "lr_scheduler: adafactor works only with optimizer_type = Adafactor and relative_step; choose constant"
        )
    if name not in SCHEDULES:
        raise ValueError(f"lr_scheduler: {name!r} is not one of {', '.join(SCHEDULES)}")
    # resolved late: transformers is slow to import, and a run with an error should stop quickly
    return name, pkgutil.resolve_name(SCHEDULES[name].path), SCHEDULES[name]


def _steps(given: float, total: int) -> int:
    """Return a number of steps; below 1 `given` is a share of all."""
    return int(given * total) if given < 1 else int(given)


def _shown_at_first(lr_scheduler: str) -> float:
    """Return the rate that Adafactor reports before its first step: 1e-4 of `adafactor:1e-4`."""
    start = lr_scheduler.partition(":")[2]
    try:
        return float(start or 0)
    except ValueError:
        raise ValueError(f"lr_scheduler: {start!r} in adafactor:{start} is not a number") from None
