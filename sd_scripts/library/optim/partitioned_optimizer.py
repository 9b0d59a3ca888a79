"""One optimizer made of several, each over a partition of the weights that can be stepped by itself.

So weights can be updated in backward, or block by block. Any optimizer can also train half-precision weights: it steps
float32 surrogates, which exist only during the step of their partition, and the result is rounded stochastically.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sd_scripts.library.optim.recordable import ScalesGradients
from sd_scripts.library.optim.stochastic_rounding import Key, round_stochastically

Group = dict[str, Any]
"""`params`, and what differs for them, such as `lr`."""

OWN = ("params", "seed")
"""Group entries of each partition's own; the others come from the facade."""


@dataclass(kw_only=True)
class _Member:
    """One weight."""

    weight: nn.Parameter
    stepped: nn.Parameter
    """The parameter of the optimizer: the weight itself, or a float32 surrogate without memory until materialized."""
    number: int
    """Index among all weights."""

    @torch.no_grad()
    def materialize(self) -> None:
        """Allocate the surrogate and copy the weight's value and gradient into it."""
        surrogate = self.stepped
        surrogate.untyped_storage().resize_(surrogate.numel() * surrogate.element_size())
        surrogate.copy_(self.weight)
        if self.weight.grad is not None:
            surrogate.grad = self.weight.grad.float()

    def release(self) -> None:
        self.stepped.grad = None
        self.stepped.untyped_storage().resize_(0)


@dataclass(kw_only=True)
class _Partition:
    optimizer: Optimizer
    gradient: Callable[[nn.Parameter], Tensor | None]
    """Returns the gradient that the optimizer uses for a weight."""
    members: list[_Member]
    groups: list[int]
    """Which of the facade's groups each group of the optimizer is part of."""
    given: list[Group]
    """The facade's groups when they were last passed on. Some optimizers keep counters in their groups, so only values
    that were set since then are written there."""
    steps: int = 0

    def trainable(self) -> list[_Member]:
        """Return the members that have a gradient."""
        return [member for member in self.members if self.gradient(member.weight) is not None]

    @contextmanager
    def surrogates(self, members: Sequence[_Member], write: Callable[[_Member], object]) -> Iterator[None]:
        """Materialize the surrogates of `members`; at the end `write` copies each value to its weight."""
        members = [member for member in members if member.stepped is not member.weight]
        try:
            for member in members:
                member.materialize()
            yield
            for member in members:
                write(member)
        finally:
            for member in members:
                member.release()


class PartitionedOptimizer(Optimizer):
    """The facade over all partitions: schedulers fill its groups, and its state_dict covers all of them."""

    def __init__(
        self,
        groups: list[Group],
        make: Callable[[list[Group]], Optimizer],
        partition_of: Callable[[nn.Parameter], Hashable],
        *,
        rounds: bool,
        seed: int,
        resident: Callable[[Hashable], AbstractContextManager[Any]] | None = None,
    ):
        """`groups`: dicts of `params`, `lr` and what else differs. `make` builds the optimizer of one partition; its
        groups also have a `seed`, a different one for each partition. `rounds`: weights in half precision are stepped
        as surrogates. `resident` is entered around every change of a partition's weights, except in step_partition,
        whose caller has made them resident. The weights must already be on the training device."""
        super().__init__(groups, defaults={})
        self._seed = seed
        self._resident = resident or (lambda key: nullcontext())
        members: dict[Hashable, list[_Member]] = {}
        for number, weight in enumerate(weight for group in self.param_groups for weight in group["params"]):
            key = partition_of(weight)
            stepped = _surrogate(weight) if rounds and weight.dtype != torch.float32 else weight
            members.setdefault(key, []).append(_Member(weight=weight, stepped=stepped, number=number))
        initial = [dict(group) for group in self.param_groups]
        complete: set[int] = set()
        self._parts = {key: self._partition(make, initial, complete, of_key) for key, of_key in members.items()}
        self._stepped: set[Hashable] = set()
        self.defaults = self.representative.defaults

    def _partition(
        self, make: Callable[[list[Group]], Optimizer], initial: list[Group], complete: set[int], members: list[_Member]
    ) -> _Partition:
        """`asked`: the groups as passed in; `complete`: the facade's groups that have the optimizer's entries."""
        stepped = {member.weight: member.stepped for member in members}
        mine = [[stepped[weight] for weight in group["params"] if weight in stepped] for group in initial]
        places = [place for place, params in enumerate(mine) if params]
        seed = self._seed + members[0].number
        optimizer = make([{**initial[i], "params": mine[i], "seed": seed} for i in places])
        for i, group in zip(places, optimizer.param_groups, strict=True):
            if i not in complete:
                self.param_groups[i].update({name: value for name, value in group.items() if name not in OWN})
                complete.add(i)
        gradient = optimizer.gradient if isinstance(optimizer, ScalesGradients) else attrgetter("grad")
        partition = _Partition(optimizer=optimizer, gradient=gradient, members=members, groups=places, given=[])
        self._link_groups(partition)
        return partition

    def _link_groups(self, partition: _Partition) -> None:
        """Let changes of the facade's groups reach the partition from now on; tensor rates are shared."""
        partition.given = [dict(self.param_groups[i]) for i in partition.groups]
        for group, given in zip(partition.optimizer.param_groups, partition.given, strict=True):
            group["lr"] = given["lr"]

    @property
    def representative(self) -> Optimizer:
        """The optimizer of one partition; all have the same class."""
        return next(iter(self._parts.values())).optimizer

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each partition that has gradients and was not stepped since the last call."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for key, partition in self._parts.items():
            if key not in self._stepped and partition.trainable():
                with self._resident(key):
                    self.step_partition(key)
        self._stepped.clear()
        return loss

    def step_partition(self, key: Hashable) -> None:
        """Step the weights of one partition that have gradients; the caller drops the gradients."""
        partition = self._parts[key]
        self._push_hyperparameters(partition)
        partition.steps += 1
        with partition.surrogates(partition.trainable(), lambda member: self._round(member, partition.steps)):
            partition.optimizer.step()
        for member in partition.members:
            if member.stepped in partition.optimizer.state:
                self.state[member.weight] = partition.optimizer.state[member.stepped]
        self._stepped.add(key)

    def was_stepped(self, key: Hashable) -> bool:
        """Return whether the partition was stepped by itself since the last step()."""
        return key in self._stepped

    def _round(self, member: _Member, step: int) -> None:
        round_stochastically(member.stepped, member.weight, Key(self._seed, step, member.number))

    def _push_hyperparameters(self, partition: _Partition) -> None:
        for i, group, given in zip(partition.groups, partition.optimizer.param_groups, partition.given, strict=True):
            for name, value in self.param_groups[i].items():
                if name not in OWN and value is not given.get(name):
                    group[name] = given[name] = value

    def train(self) -> None:
        """Of schedule-free optimizers: switch to the training weights."""
        self._change(lambda optimizer: optimizer.train())

    def eval(self) -> None:
        """Of schedule-free optimizers: switch to the averaged weights."""
        self._change(lambda optimizer: optimizer.eval())

    def _change(self, change: Callable[[Any], object]) -> None:
        for key, partition in self._parts.items():
            with self._resident(key), partition.surrogates(partition.members, _write_nearest):
                change(partition.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume bit for bit; partitions in the order of their first weights."""
        return {
            "param_groups": [
                {name: value for name, value in group.items() if name not in OWN} for group in self.param_groups
            ],
            "portions": [
                {"steps": partition.steps, "optimizer": partition.optimizer.state_dict()}
                for partition in self._parts.values()
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. Raises ValueError if it has other groups or partitions."""
        for name, key, held in (("groups", "param_groups", self.param_groups), ("partitions", "portions", self._parts)):
            if len(state_dict[key]) != len(held):
                raise ValueError(f"the optimizer has {len(held)} {name}, but its state has {len(state_dict[key])}")
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            rate = group["lr"]
            group.update(saved)
            if isinstance(rate, Tensor):
                group["lr"] = rate.copy_(torch.as_tensor(saved["lr"]))
        for partition, saved in zip(self._parts.values(), state_dict["portions"], strict=True):
            partition.steps = saved["steps"]
            partition.optimizer.load_state_dict(saved["optimizer"])
            self._link_groups(partition)


def _surrogate(weight: nn.Parameter) -> nn.Parameter:
    surrogate = nn.Parameter(torch.empty_like(weight, dtype=torch.float32))
    surrogate.untyped_storage().resize_(0)  # keeps its shape
    return surrogate


@torch.no_grad()
def _write_nearest(member: _Member) -> None:
    member.weight.copy_(member.stepped)
