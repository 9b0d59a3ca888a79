"""torch's fused AdamW for parameters that are adjacent in one buffer, as in an adapter network.

It updates each run of neighbours as one tensor: fewer launches, which use the GPU better, and no Python per parameter.
Every element is updated as torch does it, and the state has the same entries, and neighbours' entries are side by side
as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """The parameters of a group that have a gradient, neighbours as one tensor each."""

    of: tuple[list[Tensor], list[Tensor | None]]
    """The group's parameters, and the gradients that they have; a changed one needs other runs."""
    firsts: list[Tensor]
    """The first parameter of each run."""
    values: list[Tensor]
    gradients: list[Tensor]
    averages: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]

    def serve(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether nothing has been replaced or moved."""
        own, gradients = self.of
        same = len(own) == len(parameters) and all(map(operator.is_, own, parameters))
        return (
            same
            and all(p.grad is gradient for p, gradient in zip(own, gradients, strict=True))
            and all(p.data_ptr() == run.data_ptr() for p, run in zip(self.firsts, self.values, strict=True))
        )


class MergedAdamW(torch.optim.AdamW):
    """AdamW with `fused`, without `amsgrad`."""

    known_as = "torch.optim.adamw.AdamW"

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self._runs: dict[int, _Runs] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            runs = self._runs.get(number)
            if runs is None or not runs.serve(group["params"]):
                runs = self._runs[number] = self._found(group)
            beta1, beta2 = group["betas"]
            adamw(
                *(runs.values, runs.gradients, runs.averages, runs.squares, [], runs.steps),
                **{name: group[name] for name in ("lr", "weight_decay", "eps", "maximize", "capturable")},
                beta1=beta1,
                beta2=beta2,
                amsgrad=False,
                fused=True,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
            )
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch's AdamW takes it: with a number of steps for each parameter."""
        state = super().state_dict()
        states = {number: {**each, "step": each["step"].clone()} for number, each in state["state"].items()}
        return {**state, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._runs.clear()

    def _found(self, group: dict[str, Any]) -> _Runs:
        """Return the runs of a group, and move the moments of neighbours side by side."""
        parameters = [*group["params"]]
        gradients = [p.grad for p in group["params"]]
        self._init_group(group, *([] for _ in range(6)))  # creates the state of parameters without one
        trained = [p for p in parameters if p.grad is not None]
        for p in trained:
            self.state[p]["step"] = self.state[p]["step"].clone()  # neighbours may have shared it until now
        runs = _neighbours(trained)
        runs = [part for run in runs for part in ([run] if self._in_step(run) else [[p] for p in run])]
        for run in runs:
            for name in MOMENTS:
                self._pack(run, name)
            for p in run[1:]:
                self.state[p]["step"] = self.state[run[0]]["step"]
        states = [[self.state[p] for p in run] for run in runs]
        return _Runs(
            of=(parameters, gradients),
            firsts=[run[0] for run in runs],
            values=[_merged(run) for run in runs],
            gradients=[_merged([p.grad for p in run]) for run in runs],
            averages=[_merged([each["exp_avg"] for each in run]) for run in states],
            squares=[_merged([each["exp_avg_sq"] for each in run]) for run in states],
            steps=[run[0]["step"] for run in states],
        )

    def _in_step(self, run: Sequence[Tensor]) -> bool:
        """Return whether all parameters have been updated equally often."""
        return len(run) == 1 or len({float(step) for step in torch.stack([self.state[p]["step"] for p in run])}) == 1

    def _pack(self, run: Sequence[Tensor], name: str) -> None:
        """Move the moments of a run into one buffer, unless they are adjacent."""
        moments = [self.state[p][name] for p in run]
        if len(run) == 1 or all(_follows(a, b) for a, b in pairwise(moments)):
            return
        flat = torch.cat([moment.flatten() for moment in moments])
        for p, part in zip(run, flat.split([moment.numel() for moment in moments]), strict=True):
            self.state[p][name] = part.view(p.shape)


def _neighbours(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the parameters as runs of neighbours whose gradients are neighbours as well, in order of address."""
    runs: list[list[Tensor]] = []
    for p in sorted(parameters, key=lambda p: p.data_ptr() if _is_plain(p) else 0):
        if runs and _follows(runs[-1][-1], p) and _follows(runs[-1][-1].grad, p.grad):
            runs[-1].append(p)
        else:
            runs.append([p])
    return runs


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is in this process's memory, without gaps; FSDP's are not."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_contiguous()


def _follows(first: Tensor | None, second: Tensor | None) -> bool:
    """Return whether the second tensor begins in memory where the first one ends, as one dtype of one buffer."""
    if first is None or second is None or not (_is_plain(first) and _is_plain(second)):
        return False
    return (
        first.dtype == second.dtype
        and first.untyped_storage()._cdata == second.untyped_storage()._cdata
        and first.storage_offset() + first.numel() == second.storage_offset()
    )


def _merged(tensors: Sequence[Any]) -> Tensor:
    """Return neighbours as one tensor (n,) of the same memory, also after that is freed and allocated again."""
    first: Tensor = tensors[0]
    if len(tensors) == 1:
        return first
    count = sum(tensor.numel() for tensor in tensors)
    return torch.empty(0, dtype=first.dtype, device=first.device).set_(
        first.untyped_storage(), first.storage_offset(), (count,), (1,)
    )
