"""Learning rate schedules by name, through diffusers' and transformers' own functions, or any class by dotted path."""

import contextlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from sd_scripts.library.key_values import class_by_path, key_values
from sd_scripts.library.optimizers import is_schedule_free, make_optimizer, updater
from sd_scripts.options.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.optimizers import optimizer_name
from sd_scripts.options.schedules import SCHEDULES, Schedule
from sd_scripts.options.spec import WrongValue

Maker = Callable[..., LRScheduler]

PYTORCHS = "torch.optim.lr_scheduler"


class AdafactorRate(LRScheduler):
    """Shows the rate that Adafactor sets itself, of the first parameter of each group.

    transformers' own class takes a parameter with a gradient for one that was stepped, and ours have theirs from the
    beginning.
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
    """The schedule over `total_steps` optimizer steps.

    Schedule-free optimizers and Adafactor with relative_step set their own rate and get one that leaves it alone.
    Raises ValueError for an unknown name, arguments that the schedule does not take, and a warm-up where there is none.
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
    """Make both for a single number, so that what is wrong with them is told before a model is loaded.

    Raises ValueError as make_optimizer and make_scheduler do; gives back what will have no effect, one sentence each.
    """
    with _in_a_sentence(f"optimizer_type, optimizer_args: {optimizer_name(optimizer.optimizer_type)}"):
        made = make_optimizer(optimizer, [{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    with _in_a_sentence(f"lr_scheduler_args: {scheduler.lr_scheduler_type or scheduler.lr_scheduler}"):
        schedule = make_scheduler(scheduler, made, total_steps=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch remarks that the optimizer has not stepped
            advance(schedule, torch.tensor(1.0))
    if is_schedule_free(made) and (scheduler.lr_scheduler != "constant" or scheduler.lr_warmup_steps):
        return [
            f"lr_scheduler, lr_warmup_steps: {type(made).__name__} needs no schedule and ignores them; "
            "its own warm-up is warmup_steps=100 in optimizer_args"
        ]
    return []


@contextlib.contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Values of a wrong kind fail anywhere within the code of other people."""
    try:
        yield
    except (ValueError, WrongValue):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"{what} cannot be made with these arguments ({type(error).__name__}: {first})") from error


def advance(scheduler: LRScheduler, loss: torch.Tensor) -> None:
    """One step of the schedule. Only reduce_lr_on_plateau looks at the loss, and waits for the device to do so."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(float(loss))
    else:
        scheduler.step()


ON_PLATEAU = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""What reduce_lr_on_plateau has seen of the losses."""


def advance_to(scheduler: LRScheduler, step: int) -> None:
    """Bring a new schedule to where it would be after `step` steps."""
    if isinstance(scheduler, ReduceLROnPlateau):  # it goes by losses, not by steps
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it expects a step of the optimizer before each of its own
        for _ in range(step):
            scheduler.step()


def resume_plateau(scheduler: ReduceLROnPlateau, state: Mapping[str, Any], rates: Sequence[float]) -> None:
    """Take over what an earlier reduce_lr_on_plateau has seen of the losses, and how far it has lowered `rates`."""
    vars(scheduler).update({name: state[name] for name in ON_PLATEAU if name in state})
    for group, lowered, began in zip(scheduler.optimizer.param_groups, state["_last_lr"], rates, strict=True):
        rate = float(group["lr"]) * float(lowered) / began if began else 0.0
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def learning_rates(scheduler: LRScheduler) -> list[float]:
    """The rate of each group as Python numbers; for the named schedules without asking the device for its tensors."""
    if type(scheduler) is LambdaLR:
        factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        return [float(base) * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
    return [float(rate) for rate in scheduler.get_last_lr()]


def _choose(options: LrSchedulerOptions, optimizer: Optimizer) -> tuple[str, Maker, Schedule]:
    """The schedule's name, what makes it, and its entry in the table."""
    name = options.lr_scheduler.partition(":")[0]
    if optimizer.defaults.get("relative_step"):  # Adafactor, which sets its own rate
        return "adafactor", AdafactorRate, SCHEDULES["adafactor"]
    if options.lr_scheduler_type:
        named = options.lr_scheduler_type  # without a dot it is one of PyTorch's, as in sd-scripts
        path = named if "." in named else f"{PYTORCHS}.{named}"
        return named, class_by_path("lr_scheduler_type", path), Schedule(path)
    if name == "adafactor":
        raise ValueError(
            "lr_scheduler: adafactor works only with optimizer_type = Adafactor and relative_step; choose constant"
        )
    if name not in SCHEDULES:
        raise ValueError(f"lr_scheduler: {name!r} is not one of {', '.join(SCHEDULES)}")
    # resolved here: transformers is slow to import, and a run that stops early should do so quickly
    return name, pkgutil.resolve_name(SCHEDULES[name].path), SCHEDULES[name]


def _steps(given: float, total: int) -> int:
    """Below 1 a share of all steps."""
    return int(given * total) if given < 1 else int(given)


def _shown_at_first(lr_scheduler: str) -> float:
    """The rate that Adafactor reports before its first step: 1e-4 of `adafactor:1e-4`."""
    start = lr_scheduler.partition(":")[2]
    try:
        return float(start or 0)
    except ValueError:
        raise ValueError(f"lr_scheduler: {start!r} in adafactor:{start} is not a number") from None
