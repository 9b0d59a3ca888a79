"""Make optimizers by name.

The default, torch's AdamW, never waits for the device: it is fused, capturable on CUDA, and the learning rate of each
group is a tensor, which schedulers fill in place.
"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sd_scripts.library.optim import adamw_8bit
from sd_scripts.library.optim.key_values import class_by_path, key_values
from sd_scripts.library.optim.merged_adamw import MergedAdamW
from sd_scripts.library.optim.partitioned_optimizer import Group, PartitionedOptimizer
from sd_scripts.library.optim.recordable import RecordableOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import (
    OPTIMIZERS,
    KnownOptimizer,
    is_schedule_free_class,
    known_optimizer,
    optimizer_name,
)

if plain := getattr(Optimizer.add_param_group, "__wrapped__", None):
    # PyTorch would import the compiler to keep it off this function, which is never within compiled code
    plain.__dynamo_disable = plain

TORCH_ONLY = ("foreach", "amsgrad", "fused", "maximize", "differentiable", "capturable")
"""AdamW arguments that RoundingAdamW does not support; giving one selects torch's AdamW."""
BITSANDBYTES_ADAMW = "bitsandbytes.optim.AdamW8bit"
BITSANDBYTES_ONLY = ("amsgrad", "optim_bits", "min_8bit_size", "is_paged")
"""AdamW8bit arguments that ours does not support; giving one selects bitsandbytes'."""


def is_rounding_adamw(options: OptimizerOptions) -> bool:
    """Return whether make_optimizer's `rounding` or `copies` chooses RoundingAdamW."""
    arguments = key_values("optimizer_args", options.optimizer_args)
    return optimizer_name(options.optimizer_type) == "AdamW" and arguments.keys().isdisjoint(TORCH_ONLY)


def rounds_weights(optimizer: Optimizer) -> bool:
    """Return whether an optimizer rounds half-precision weights stochastically; any other needs
    PartitionedOptimizer(rounds=True) for them."""
    return getattr(optimizer, "rounds_weights", False)


def make_optimizer(
    options: OptimizerOptions,
    groups: Iterable[Group],
    *,
    rounding: bool = False,
    seed: int = 0,
    copies: Mapping[Tensor, Tensor] | None = None,
) -> Optimizer:
    """Return the optimizer over `groups`; a group without `lr` gets learning_rate.

    With `rounding` or `copies`, AdamW is RoundingAdamW unless an argument wants torch's. AdamW8bit is ours unless an
    argument wants bitsandbytes', or only bitsandbytes has kernels for the GPU. Other optimizers ignore both.
    The parameters must already be on the training device. Raises ValueError for an unknown name, a missing package and
    arguments that the optimizer does not accept.
    """
    name = optimizer_name(options.optimizer_type)
    groups = [{"lr": options.learning_rate, **group} for group in groups]
    kind = _class(known_optimizer(name))
    arguments = optimizer_arguments(options)
    ours = bool(rounding or copies) and is_rounding_adamw(options)
    more: dict[str, Any] = {}
    if ours:
        kind = RoundingAdamW
        more = {"seed": seed, "copies": copies}
        del arguments["fused"]
    elif name == "AdamW8bit":
        ours = _is_own_adamw_8bit(arguments, groups)
        if ours:
            more = {"seed": seed, "copies": copies}
        else:
            kind = _class(known_optimizer(BITSANDBYTES_ADAMW))
    elif name == "Adafactor":
        more = {"seed": seed}
    if known_optimizer(name).one_rate:
        _check_one_rate(name, groups)
    rate: float | None = options.learning_rate
    if arguments.get("relative_step"):  # Adafactor then accepts no rate, neither in general nor for a group
        rate = None
        groups = [{**group, "lr": None} for group in groups]
    if name == "AdamW" and not ours:
        on_cuda = all(parameter.is_cuda for group in groups for parameter in group["params"])
        arguments = {"capturable": on_cuda, **arguments}
        if arguments.get("foreach") or arguments.get("differentiable"):
            arguments["fused"] = False
        if arguments["fused"] and not arguments.get("amsgrad"):
            kind = MergedAdamW
    try:
        optimizer = kind(groups, lr=rate, **more, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer_args, learning_rate: {name} does not accept these values ({error})") from error
    if ours or (name == "AdamW" and arguments["fused"]):
        _make_rates_tensors(optimizer)
    return optimizer


def class_names(options: OptimizerOptions) -> set[str]:
    """Return the names of the classes, one of which make_optimizer creates with these options."""
    known = known_optimizer(options.optimizer_type)
    kinds = {_class(known), *((MergedAdamW, RoundingAdamW) if known is OPTIMIZERS["AdamW"] else ())}
    return {class_name(kind) for kind in kinds}


def class_name(kind: type) -> str:
    """Return the full name of a class as states record it: of the class whose states it reads and writes."""
    return getattr(kind, "state_class", "") or without_own_module(f"{kind.__module__}.{kind.__qualname__}")


def without_own_module(name: str) -> str:
    """Return the full name of a class without the module if it is one of ours, which may move after a state was
    written."""
    package, last = __name__.partition(".")[0], name.rpartition(".")[2]
    return f"{package}.{last}" if name.startswith(f"{package}.") else name


def optimizer_arguments(options: OptimizerOptions) -> dict[str, Any]:
    """Return the optimizer's arguments without groups and rate: its name's, then optimizer_args."""
    known = known_optimizer(options.optimizer_type)
    arguments = {**known.arguments, **key_values("optimizer_args", options.optimizer_args)}
    return arguments | ({"relative_step": options.sets_its_own_rate} if known is OPTIMIZERS["Adafactor"] else {})


def description(optimizer: Optimizer, options: OptimizerOptions) -> str:
    """Return ss_optimizer of saved files: `torch.optim.adamw.AdamW(weight_decay=0.1,betas=(0.9, 0.99))`.

    Our own classes have the names that other programs use."""
    arguments = {key: value for key, value in optimizer_arguments(options).items() if key != "fused"}
    listed = ",".join(f"{key}={value}" for key, value in arguments.items())
    kind = type(updater(optimizer))
    name = getattr(kind, "known_as", f"{kind.__module__}.{kind.__name__}")
    return name + (f"({listed})" if listed else "")


def updater(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that updates the weights: for a PartitionedOptimizer, one partition's optimizer."""
    return optimizer.representative if isinstance(optimizer, PartitionedOptimizer) else optimizer


def keeps_update_from_recording(
    optimizer: Optimizer, options: OptimizerOptions, *, scaled: bool, processes: int
) -> str:
    """Return why the update of a recorded step (settings/recording.py) cannot be recorded as well; empty if it can.
    `scaled`: a GradScaler steps the optimizer."""
    name = optimizer_name(options.optimizer_type)
    if processes > 1:
        return "the processes average their gradients"
    if isinstance(optimizer, PartitionedOptimizer):
        return "weights are updated in parts"
    if not known_optimizer(name).capturable:
        return f"{name} needs the CPU in each step"
    if isinstance(optimizer, RecordableOptimizer):
        return "the CPU reads whether a gradient has overflowed" if scaled else ""
    groups = optimizer.param_groups
    fixed = not all(isinstance(group["lr"], Tensor) and group["capturable"] for group in groups)
    return f"{name} is not fused or not capturable with these optimizer_args" if fixed else ""


def is_schedule_free(optimizer: Optimizer) -> bool:
    """Return whether the optimizer replaces the learning rate schedule and has train and eval weights."""
    return is_schedule_free_class(type(updater(optimizer)).__name__)


def train_mode(optimizer: Optimizer) -> None:
    """Call before training continues: a schedule-free optimizer restores its training weights."""
    if is_schedule_free(optimizer):
        optimizer.train()  # type: ignore[attr-defined]


def eval_mode(optimizer: Optimizer) -> None:
    """Call before saving, sampling or validation: a schedule-free optimizer switches to its averaged weights."""
    if is_schedule_free(optimizer):
        optimizer.eval()  # type: ignore[attr-defined]


def hyperparameters(optimizer: Optimizer) -> list[Group]:
    """Return each group's entries except its weights, as plain values."""
    return [
        {name: _plain(value) for name, value in group.items() if name not in ("params", "seed")}
        for group in optimizer.param_groups
    ]


def set_hyperparameters(optimizer: Optimizer, groups: Iterable[Group]) -> None:
    """Write the values of one dict per group into the groups; a rate that is a tensor is filled in place."""
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        for name, value in values.items():
            if isinstance(group.get(name), Tensor):
                group[name].fill_(value)
            else:
                group[name] = value


def _is_own_adamw_8bit(arguments: Mapping[str, Any], groups: Iterable[Group]) -> bool:
    if not arguments.keys().isdisjoint(BITSANDBYTES_ONLY):
        return False
    devices = {parameter.device for group in groups for parameter in group["params"] if parameter.is_cuda}
    return all(adamw_8bit.kernels_on(device) for device in devices) or not find_spec("bitsandbytes")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _class(known: KnownOptimizer) -> type:
    known.require_package()
    try:
        kind = class_by_path("optimizer_type", known.path)
        if not issubclass(kind, Optimizer):
            raise ValueError(f"optimizer_type: {known.path!r} is not an optimizer")
        return kind
    except ValueError as error:
        names = ", ".join(name for name, each in OPTIMIZERS.items() if each.installed)
        raise ValueError(f"{error}; known names are {names}") from error


def _check_one_rate(name: str, groups: list[Group]) -> None:
    rates = {group["lr"] for group in groups} - {0.0}
    if len(rates) > 1:
        listed = ", ".join(map(str, sorted(rates)))
        raise ValueError(
            f"unet_lr, text_encoder_lr: {name} uses a single learning rate and cannot use {listed}; leave them "
            "unset and set learning_rate = 1"
        )


def _make_rates_tensors(optimizer: Optimizer) -> None:
    """Make each group's rate a tensor on the parameters' device, the same one even after a state is loaded, so that a
    captured step reads the scheduler's values."""
    rates = []
    for group in optimizer.param_groups:
        # Schedulers start from this Python number, so that they never read from the device.
        group["initial_lr"] = float(group["lr"])
        group["lr"] = torch.tensor(group["initial_lr"], dtype=torch.float32, device=group["params"][0].device)
        rates.append(group["lr"])

    def keep(loaded: Optimizer) -> None:
        for group, rate in zip(loaded.param_groups, rates, strict=True):
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))

    optimizer.register_load_state_dict_post_hook(keep)
