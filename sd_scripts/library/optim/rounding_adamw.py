"""AdamW for half-precision weights, with stochastic rounding of weights and moments.

torch's AdamW rounds to nearest, which loses small updates. torchao's can round stochastically, but draws from the
generator of the device, so that its numbers depend on other draws, and differ from process to process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from sd_scripts.library.optim import stochastic_rounding
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically, same_layout

MOMENTS = {torch.float32: torch.float32, torch.bfloat16: torch.bfloat16, torch.float16: torch.bfloat16}
"""Weight dtype -> dtype of its moments. The squares of typical gradients underflow to 0 in fp16."""


class ParamUpdate(NamedTuple):
    """One weight and the tensors that its update reads and writes."""

    weight: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    copy: Tensor | None
    step: int
    """Number of this update of the weight, from 1."""
    number: int
    absmax: tuple[Tensor, Tensor] | None = None
    """The scales of moments in 8 bits, one for each block."""


class Hyperparams(NamedTuple):
    """Hyperparameters shared by all weights of a group. lr and factor may be 0-dim float32 tensors on the device."""

    lr: float | Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    seed: int
    factor: Tensor | None


class _Plan(NamedTuple):
    """How to update the weights of a group that have gradients. It has no gradient."""

    addresses: list[Any]
    """The addresses that the plan was made for; it is invalid for any others."""
    tables: list[Any]
    """Kernel tables for the weights that the kernels support."""
    others: list[tuple[Tensor, int]]
    """Weights updated by plain PyTorch, with their indices."""
    trainable: list[Tensor]


class RoundingAdamW(Optimizer):
    """torch.optim.AdamW's update (Loshchilov and Hutter 2019), computed in float32 for the dtypes in MOMENTS.

    Half-precision weights and moments are rounded stochastically. Nothing waits for the device.
    """

    known_as = "torch.optim.adamw.AdamW"
    rounds_weights = True
    moment_names = ("exp_avg", "exp_avg_sq")
    """Entries of the state."""
    clip_factor: Tensor | None = None
    """0-dim float32 on the device: multiplies gradients, such as for clipping, without an extra pass. At 0 they count
    as 0 even where they are non-finite."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        seed: int = 0,
        copies: Mapping[Tensor, Tensor] | None = None,
    ):
        """`copies`: float32 master -> the half-precision tensor that the model computes with. A master without a
        gradient uses its copy's, and the copy is rewritten in each step."""
        for name, value, fits in (
            ("lr", lr, isinstance(lr, Tensor) or lr >= 0),
            ("betas", betas, len(betas) == 2 and all(0 <= beta < 1 for beta in betas)),
            ("eps", eps, eps >= 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
        ):
            if not fits:
                raise ValueError(f"{name} = {value} is out of range")
        self.copies = copies or {}
        self._plan_cache: dict[int, _Plan] = {}
        """Plans by group index."""
        self._recorded: list[_Plan] = []
        """The plans of the groups in a recorded step."""
        self._replays = 0
        """Steps that were replayed and are not counted in the state yet."""
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "seed": seed}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for weight in self.param_groups[-1]["params"]:
            if weight.dtype not in MOMENTS:
                raise ValueError(f"weights in {weight.dtype} are not supported; use {', '.join(map(str, MOMENTS))}")

    def gradient(self, weight: Tensor) -> Tensor | None:
        """Return the gradient that the next step uses: the weight's own, or its copy's."""
        if weight.grad is None and weight in self.copies:
            return self.copies[weight].grad
        return weight.grad

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._count_replays()
        plans = self._plans()
        self._set_steps(plans)
        self._launch(plans)
        self._count(plans, 1)
        return loss

    def begin_recording(self) -> bool:
        """Let recorded steps update the weights at their current addresses, with their gradients; return whether that
        is possible, because kernels update all of them."""
        self._count_replays()
        plans = self._plans()
        if [plan.addresses for plan in plans] != [plan.addresses for plan in self._recorded]:
            self._recorded = plans  # else an earlier graph reads the tables of the same plans
        return self.updates_by_kernels_alone(self._recorded)

    @staticmethod
    def updates_by_kernels_alone(plans: Sequence[_Plan]) -> bool:
        """Return whether all that differs between two steps is in memory that kernels read."""
        return not any(plan.others for plan in plans)

    def launch(self) -> None:
        """Launch a step's computation, to be recorded. The values that differ between steps come from fill_scalars."""
        self._launch(self._recorded)

    def fill_scalars(self) -> None:
        """Set the values of the next step."""
        self._set_steps(self._recorded)

    def replayed(self) -> None:
        """Note that a recorded step was replayed."""
        self._replays += 1

    def _set_steps(self, plans: Sequence[_Plan]) -> None:
        for group, plan in zip(self.param_groups, plans, strict=True):
            for table in plan.tables:
                table.set_steps(self._next_step, group["betas"])

    def _next_step(self, weight: Tensor) -> int:
        return int(self.state[weight]["step"]) + self._replays + 1

    @torch.no_grad()
    def _launch(self, plans: Sequence[_Plan]) -> None:
        for group, plan in zip(self.param_groups, plans, strict=True):
            shared = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay", "seed")}
            hyper = Hyperparams(**shared, factor=self.clip_factor)
            for table in plan.tables:
                table.update(hyper)
            for weight, number in plan.others:
                grad = self.gradient(weight)
                assert grad is not None
                self._update(self._param_update(weight, grad, number), hyper)

    def _count(self, plans: Sequence[_Plan], steps: int) -> None:
        for plan in plans:
            for weight in plan.trainable:
                self.state[weight]["step"] += steps

    def _count_replays(self) -> None:
        """Count the replayed steps in the state: only once it is needed, as that takes a millisecond for a model."""
        if self._replays:
            self._count(self._recorded, self._replays)
            self._replays = 0

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients that the next step uses: 0-dim float32, on their device, without waiting."""
        squares: list[Tensor] = []
        for plan in self._plans():
            squares += [part for table in plan.tables for part in table.squares()]
            grads = [grad for weight, _ in plan.others if (grad := self.gradient(weight)) is not None]
            squares += [norm.square().view(1) for norm in torch._foreach_norm(grads, 2, torch.float32)] if grads else []
        return torch.cat(squares).sum().sqrt() if squares else torch.zeros(())

    def _plans(self) -> list[_Plan]:
        """Return each group's update plan. Making one takes milliseconds, so it is reused while no tensor has moved,
        as in replayed CUDA graphs."""
        begin = 0
        plans = []
        for index, group in enumerate(self.param_groups):
            weights = group["params"]
            grads = [self.gradient(weight) for weight in weights]
            addresses = [
                (weight.data_ptr(), grad.data_ptr(), grad.stride()) if grad is not None else None
                for weight, grad in zip(weights, grads, strict=True)
            ]
            plan = self._plan_cache.get(index)
            if plan is None or plan.addresses != addresses:
                plan = self._plan_cache[index] = self._plan(weights, grads, begin, addresses)
            plans.append(plan)
            begin += len(weights)
        return plans

    def _plan(self, weights: list[Tensor], grads: list[Tensor | None], begin: int, addresses: list[Any]) -> _Plan:
        pairs = enumerate(zip(weights, grads, strict=True), begin)
        updates = [self._param_update(weight, grad, i) for i, (weight, grad) in pairs if grad is not None]
        fitting = [
            update
            for update in updates
            if same_layout(update.weight, update.grad, update.exp_avg, update.exp_avg_sq, update.copy)
        ]
        tables = self._tables(fitting, updates[0].weight.device) if fitting else []
        numbers = {update.number for update in fitting} if tables else set()
        return _Plan(
            addresses=addresses,
            tables=tables,
            others=[(update.weight, update.number) for update in updates if update.number not in numbers],
            trainable=[update.weight for update in updates],
        )

    def _tables(self, updates: list[ParamUpdate], device: torch.device) -> list[Any]:
        """Return kernel tables for all these updates; none if there are no kernels."""
        kernels = stochastic_rounding.kernels_on(device)
        return [kernels.Tables(updates)] if kernels else []

    def _param_update(self, weight: Tensor, grad: Tensor, number: int) -> ParamUpdate:
        state = self.state[weight]
        if not state:
            state["step"] = 0  # a Python number, so that reading it never waits for the device
            state |= self._first_moments(weight)
        copy = self.copies.get(weight) if self.copies else None
        exp_avg, exp_avg_sq = (state[name] for name in self.moment_names)
        absmax = (state["absmax1"], state["absmax2"]) if "absmax1" in state else None
        return ParamUpdate(weight, grad, exp_avg, exp_avg_sq, copy, self._next_step(weight), number, absmax)

    def _first_moments(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the state before the first step, without its number."""
        return {name: torch.zeros_like(weight, dtype=MOMENTS[weight.dtype]) for name in self.moment_names}

    def state_dict(self) -> dict[str, Any]:
        self._count_replays()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # torch would cast all tensors to the weight's dtype
        steps = {number: {"step": saved["step"]} for number, saved in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": steps})
        self._plan_cache.clear()
        self._recorded = []
        self._replays = 0
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, saved in state_dict["state"].items():
            self.state[weights[number]] |= self._loaded_moments(weights[number], saved)

    def _loaded_moments(self, weight: Tensor, saved: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a saved state without its step, on the device."""
        return {name: saved[name].to(weight.device, MOMENTS[weight.dtype]) for name in self.moment_names}

    def _update(self, update: ParamUpdate, hyper: Hyperparams) -> None:
        """Update one weight with plain PyTorch."""
        weight, exp_avg, exp_avg_sq = update.weight.float(), update.exp_avg.float(), update.exp_avg_sq.float()
        advance(weight, exp_avg, exp_avg_sq, update, hyper)
        changed = ((update.weight, weight), (update.exp_avg, exp_avg), (update.exp_avg_sq, exp_avg_sq))
        for part, (held, value) in enumerate(changed):
            if value is not held:  # float32 was changed in place
                round_stochastically(value, held, Key(hyper.seed, update.step, update.number, part))
        if update.copy is not None:
            update.copy.copy_(weight)


def advance(weight: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, update: ParamUpdate, hyper: Hyperparams) -> None:
    """Compute the update of a weight and its moments, float32, in place."""
    beta1, beta2 = hyper.betas
    grad = update.grad.float()
    if hyper.factor is not None:
        grad = (grad * hyper.factor).where(hyper.factor > 0, 0.0)
    weight.mul_(1 - hyper.lr * hyper.weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    spread = exp_avg_sq.sqrt().div_((1 - beta2**update.step) ** 0.5).add_(hyper.eps)
    weight.sub_((exp_avg / spread).mul_(hyper.lr / (1 - beta1**update.step)))
