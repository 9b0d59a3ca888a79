"""The optimizers that have a name of their own, and their properties."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KnownOptimizer:
    """An optimizer class and what choosing it means."""

    path: str
    package: str = "torch"
    """What pip calls its library; empty if unknown."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the name implies besides the class; optimizer_args win."""
    finds_its_rate: bool = False
    """Finds its step size itself: the learning rate is a factor, best 1."""
    rate_per_group: bool = False
    """If it finds its rate, it finds one for each parameter group, and not one for all weights together."""
    elementwise: bool = False
    """Updates each element on its own, so that FSDP may show it only some rows of a weight."""
    small_rates: bool = False
    """Full training with it takes rates of 1e-6 to 1e-5."""
    state_bytes: float | None = None
    """Bytes of GPU memory that it keeps for each trained float32 value: 0 if they move to RAM; None: unknown."""
    factored: bool = False
    """Keeps state for the rows and columns of a weight only; a 3x3 convolution has rows of 3."""
    capturable: bool = False
    """Its step can be recorded in a CUDA graph if it is fused: it reads nothing from the device, and what differs
    between two steps is on the device."""
    updates_halves: bool = False
    """Updates half-precision weights without float32 copies of them, and refreshes the copies of float32 masters."""
    installed: bool = True
    """Its package is in requirements.txt, and it is tested."""

    @property
    def one_rate(self) -> bool:
        """Whether it finds one step size for all weights together, so that they cannot be partitioned."""
        return self.finds_its_rate and not self.rate_per_group

    @property
    def schedule_free(self) -> bool:
        return is_schedule_free_class(self.path.rpartition(".")[2])

    def require_package(self) -> None:
        """Raise ValueError, one sentence, if the package of its class is not installed."""
        package = self.path.partition(".")[0]
        if package.isidentifier() and importlib.util.find_spec(package) is None:
            remedy = f"pip install {self.package}" if self.package else "install it, or choose another optimizer"
            raise ValueError(
                f"optimizer_type: cannot find '{self.path}', because the package {package} is not installed: {remedy}"
            )


def is_schedule_free_class(class_name: str) -> bool:
    """Return whether an optimizer class replaces the schedule and knows train and eval weights."""
    return "ScheduleFree" in class_name


_torch = KnownOptimizer(path="torch.optim.AdamW", elementwise=True, small_rates=True, state_bytes=8)
_bitsandbytes = KnownOptimizer(path="", package="bitsandbytes", small_rates=True)
_dadaptation = KnownOptimizer(path="", package="dadaptation", finds_its_rate=True, state_bytes=12)
_schedulefree = KnownOptimizer(path="", package="schedulefree", elementwise=True, state_bytes=8)
_elsewhere = KnownOptimizer(path="", installed=False)
_prodigyplus = replace(
    _elsewhere,
    path="prodigyplus.ProdigyPlusScheduleFree",
    package="prodigy-plus-schedule-free",
    finds_its_rate=True,
    rate_per_group=True,
)
_nesterov = {"nesterov": True, "momentum": 0.9}

OPTIMIZERS: dict[str, KnownOptimizer] = {
    "AdamW": replace(_torch, arguments={"fused": True}, capturable=True, updates_halves=True),
    "AdamW8bit": KnownOptimizer(
        path="sd_scripts.library.optim.adamw_8bit.AdamW8bit",
        small_rates=True,
        state_bytes=2.04,
        capturable=True,
        updates_halves=True,
    ),
    **{
        name: replace(_bitsandbytes, path=f"bitsandbytes.optim.{name}", state_bytes=0)
        for name in ("PagedAdamW", "PagedAdamW8bit", "PagedAdamW32bit", "PagedLion8bit")
    },
    "Lion": replace(_torch, path="lion_pytorch.Lion", package="lion-pytorch", state_bytes=4),
    "Lion8bit": replace(_bitsandbytes, path="bitsandbytes.optim.Lion8bit", state_bytes=1.02),
    "SGDNesterov": replace(_torch, path="torch.optim.SGD", arguments=_nesterov, small_rates=False, state_bytes=4),
    "SGDNesterov8bit": replace(
        _bitsandbytes, path="bitsandbytes.optim.SGD8bit", arguments=_nesterov, small_rates=False, state_bytes=1.02
    ),
    "DAdaptation": replace(_dadaptation, path="dadaptation.experimental.DAdaptAdamPreprint"),
    "DAdaptAdamPreprint": replace(_dadaptation, path="dadaptation.experimental.DAdaptAdamPreprint"),
    "DAdaptAdaGrad": replace(_dadaptation, path="dadaptation.DAdaptAdaGrad"),
    "DAdaptAdam": replace(_dadaptation, path="dadaptation.DAdaptAdam"),
    "DAdaptAdan": replace(_dadaptation, path="dadaptation.DAdaptAdan", state_bytes=20),
    "DAdaptAdanIP": replace(_dadaptation, path="dadaptation.experimental.DAdaptAdanIP", state_bytes=20),
    "DAdaptLion": replace(_dadaptation, path="dadaptation.DAdaptLion", state_bytes=8),
    "DAdaptSGD": replace(_dadaptation, path="dadaptation.DAdaptSGD"),
    "Prodigy": KnownOptimizer(path="prodigyopt.Prodigy", package="prodigyopt", finds_its_rate=True, state_bytes=16),
    "Adafactor": KnownOptimizer(
        path="sd_scripts.library.optim.adafactor.Adafactor",
        small_rates=True,
        state_bytes=0.02,
        factored=True,
    ),
    **{
        name: replace(_schedulefree, path=f"schedulefree.{name}") for name in ("AdamWScheduleFree", "RAdamScheduleFree")
    },
    "SGDScheduleFree": replace(_schedulefree, path="schedulefree.SGDScheduleFree", state_bytes=4),
    "CAME": replace(_elsewhere, path="came_pytorch.CAME", package="came-pytorch"),
    "ProdigyPlusScheduleFree": _prodigyplus,
    "ProdigyPlus": _prodigyplus,
}
_PACKAGES = {known.path.partition(".")[0]: known.package for known in OPTIMIZERS.values()} | {
    "pytorch_optimizer": "pytorch-optimizer"
}
"""How a dotted path begins -> what pip calls its package."""
_BY_LOWER_NAME = {name.lower(): name for name in OPTIMIZERS}


def optimizer_name(optimizer_type: str) -> str:
    """Return optimizer_type as the table spells it, or as the user wrote it."""
    return _BY_LOWER_NAME.get(optimizer_type.lower(), optimizer_type) or "AdamW"


def known_optimizer(optimizer_type: str) -> KnownOptimizer:
    """Return the entry of a name; for another class, by its dotted path or of torch.optim, one that claims nothing."""
    name = optimizer_name(optimizer_type)
    path = name if "." in name else f"torch.optim.{name}"
    package = _PACKAGES.get(path.partition(".")[0], "")
    return OPTIMIZERS.get(name) or replace(_elsewhere, path=path, package=package)
