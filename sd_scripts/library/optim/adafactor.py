"""Adafactor, which keeps the second moment of a matrix as the means of its rows and of its columns (Shazeer and Stern
2018, https://arxiv.org/abs/1804.04235). For tensors of more dimensions the last two are the matrix, as in transformers.

transformers' own class takes 5 s to import, launches some twenty kernels for each weight, and cannot round
stochastically. Nor can torch's, which has neither a first moment nor the switches of transformers' that settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from sd_scripts.library.kernels.triton_kernels import built_for
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically

ROWS, COLUMNS, WHOLE = "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"
"""Entries of the state: means over the columns and rows of a matrix, or the squares of a vector."""


class Hyperparams(NamedTuple):
    """Inputs of a weight's update besides its tensors."""

    lr: float
    scale: Tensor | None
    """0-dim float32 on the device: multiplies the learning rate."""
    rest: float
    """How much the second moment takes from this gradient: 1 - beta2 of this step."""
    eps: float
    clip_threshold: float
    """Updates with a larger root mean square are scaled down to it."""
    beta1: float | None
    """How much the first moment keeps; None: there is none."""
    weight_decay: float


class Adafactor(Optimizer):
    """The update of transformers.optimization.Adafactor, with its arguments and its state, computed in float32.

    Half-precision weights are rounded stochastically.
    """

    known_as = "transformers.optimization.Adafactor"
    rounds_weights = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        *,
        seed: int = 0,
    ):
        """`eps`: added to squared gradients; the smallest root mean square of a weight that scales its rate. ValueError
        if arguments exclude each other."""
        if relative_step and lr is not None:
            raise ValueError("with relative_step it sets its own rate, so lr must be unset")
        if warmup_init and not relative_step:
            raise ValueError("warmup_init needs relative_step")
        if not isinstance(eps, tuple | list) or len(eps) != 2:
            raise ValueError(f"eps = {eps} is not two numbers, such as (1e-30, 1e-3)")
        arguments = {"lr": lr, "eps": eps, "clip_threshold": clip_threshold, "decay_rate": decay_rate, "beta1": beta1}
        arguments |= {"weight_decay": weight_decay, "scale_parameter": scale_parameter}
        super().__init__(
            params, {**arguments, "relative_step": relative_step, "warmup_init": warmup_init, "seed": seed}
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("seed", self.defaults["seed"])  # which states of transformers' class lack

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        weights = ((group, weight) for group in self.param_groups for weight in group["params"])
        for number, (group, weight) in enumerate(weights):
            if weight.grad is not None:
                self._update(group, weight, number)
        return loss

    def _update(self, group: dict[str, Any], weight: Tensor, number: int) -> None:
        state = self.state[weight]
        if not state:
            state |= _first_state(weight, averages=group["beta1"] is not None)
        state["step"] += 1
        scale = None
        if group["scale_parameter"]:
            state["RMS"] = torch.linalg.vector_norm(weight, dtype=torch.float32).div_(weight.numel() ** 0.5)
            scale = state["RMS"].clamp(min=group["eps"][1])
        hyper = Hyperparams(
            lr=_own_rate(state["step"], starts_low=group["warmup_init"]) if group["relative_step"] else group["lr"],
            scale=scale,
            rest=state["step"] ** group["decay_rate"],
            eps=group["eps"][0],
            clip_threshold=group["clip_threshold"],
            beta1=group["beta1"],
            weight_decay=group["weight_decay"],
        )
        key = Key(group["seed"], state["step"], number)
        kernels = kernels_on(weight.device)
        if kernels and hyper.beta1 is None and kernels.fits(weight):
            kernels.update(weight, state, hyper, key)
        else:
            _update(weight, state, hyper, key)

    def _get_lr(self, group: dict[str, Any], state: dict[str, Any]) -> float:
        """Return the rate of the last update of a weight. Schedules call it by the name that it has in transformers."""
        lr: float = _own_rate(state["step"], starts_low=group["warmup_init"]) if group["relative_step"] else group["lr"]
        return lr * max(group["eps"][1], float(state["RMS"])) if group["scale_parameter"] else lr

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, saved in state_dict["state"].items():
            weight = weights[number]
            tensors = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
            for name, value in tensors.items():  # torch has cast it to the weight's dtype
                self.state[weight][name] = value.to(weight.device, copy=True)


def _own_rate(step: int, *, starts_low: bool) -> float:
    """Return the rate of a step with relative_step, from 1."""
    return min(1e-6 * step if starts_low else 1e-2, step**-0.5)


def _update(weight: Tensor, state: dict[str, Any], hyper: Hyperparams, key: Key) -> None:
    """Update a weight with plain PyTorch."""
    assert weight.grad is not None
    grad, value = weight.grad.float(), weight.float()
    lr = hyper.lr if hyper.scale is None else hyper.lr * hyper.scale
    squares = grad.square().add_(hyper.eps)
    if ROWS in state:
        rows = state[ROWS].lerp_(squares.mean(-1), hyper.rest)
        columns = state[COLUMNS].lerp_(squares.mean(-2), hyper.rest)
        by_row = (rows / rows.mean(-1, keepdim=True)).rsqrt_()
        update = by_row[..., None] * columns.rsqrt()[..., None, :] * grad
    else:
        update = state[WHOLE].lerp_(squares, hyper.rest).rsqrt().mul_(grad)
    size = torch.linalg.vector_norm(update) / update.numel() ** 0.5
    update.div_((size / hyper.clip_threshold).clamp_(min=1.0)).mul_(lr)
    if hyper.beta1 is not None:
        update = state["exp_avg"].lerp_(update, 1 - hyper.beta1)
    value.mul_(1 - hyper.weight_decay * lr).sub_(update)
    if value is not weight:  # float32 was changed in place
        round_stochastically(value, weight, key)


def _first_state(weight: Tensor, *, averages: bool) -> dict[str, Any]:
    """Return the state before the first step; `averages`: with a first moment."""
    state: dict[str, Any] = {"step": 0, "RMS": 0}
    if averages:
        state["exp_avg"] = torch.zeros_like(weight, dtype=torch.float32)
    shape = weight.shape
    shapes = {ROWS: shape[:-1], COLUMNS: shape[:-2] + shape[-1:]} if weight.ndim >= 2 else {WHOLE: shape}
    return state | {name: torch.zeros(each, device=weight.device) for name, each in shapes.items()}


@cache
def kernels_on(device: torch.device) -> Any:
    """Return the kernel module for this device, or None to use plain PyTorch."""

    def attempt(kernels: Any) -> None:
        weight = torch.zeros(1, dtype=torch.bfloat16, device=device)
        weight.grad = torch.zeros_like(weight)
        hyper = Hyperparams(0.0, None, rest=0.0, eps=0.0, clip_threshold=1.0, beta1=None, weight_decay=0.0)
        kernels.update(weight, {WHOLE: torch.ones(1, device=device)}, hyper, Key(0, 1, 0))

    return built_for(
        device, "sd_scripts.library.optim.adafactor_kernels", attempt, "the updates of Adafactor take longer"
    )
