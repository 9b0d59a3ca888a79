"""Several optimizers as one: as good as a single one, and any of them trains in half precision."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from transformers.optimization import Adafactor

from sd_scripts.library.optim.optimizers import eval_mode, is_schedule_free, make_optimizer, train_mode, updater
from sd_scripts.library.optim.partitioned_optimizer import Group, PartitionedOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import OPTIMIZERS

Make = Callable[[list[Group]], Optimizer]
MAKERS: dict[str, Make] = {
    "AdamW": lambda groups: AdamW(groups, weight_decay=0.1),
    "SGD with momentum": lambda groups: SGD(groups, momentum=0.9),
    "Adafactor": lambda groups: Adafactor(groups, lr=1e-3, relative_step=False),
    "RoundingAdamW": lambda groups: RoundingAdamW(groups, weight_decay=0.1),
    "our own AdamW": lambda groups: make_optimizer(OptimizerOptions(learning_rate=0.01), groups),
}
COUNT = 6


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Matrices and vectors, in turn."""
    g = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(5, *(3,) * (i % 2), generator=g).to(dtype)) for i in range(COUNT)]


def named(name: str) -> OptimizerOptions:
    return OptimizerOptions(optimizer_type=name)


def groups_of(parameters: list[nn.Parameter]) -> list[Group]:
    """Two, with different rates; every partition has weights of both."""
    return [{"params": parameters[:4], "lr": 0.02}, {"params": parameters[4:], "lr": 0.01, "name": "last"}]


def partitions(
    parameters: list[nn.Parameter], make: Make, *, rounds: bool = False, **more: Any
) -> PartitionedOptimizer:
    """Three partitions."""
    places = {parameter: i % 3 for i, parameter in enumerate(parameters)}
    return PartitionedOptimizer(groups_of(parameters), make, places.__getitem__, rounds=rounds, seed=0, **more)


def learn(optimizer: Optimizer, parameters: list[nn.Parameter], steps: range) -> list[Tensor]:
    """Gradients are the same for the same step."""
    for step in steps:
        g = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=g).to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in parameters]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def weights_by_key(optimizer: PartitionedOptimizer) -> dict[Hashable, list[nn.Parameter]]:
    return {key: [member.weight for member in part.members] for key, part in optimizer._parts.items()}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_three_partitions_train_like_one_optimizer(make: Make) -> None:
    whole, parts = weights(), weights()
    expected = learn(make(groups_of(whole)), whole, range(8))
    assert equal(learn(partitions(parts, make), parts, range(8)), expected)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("rounds", [False, True])
def test_a_state_resumes_bit_for_bit(make: Make, rounds: bool) -> None:
    dtype = torch.bfloat16 if rounds else torch.float32
    through, stopped, resumed = weights(dtype), weights(dtype), weights(dtype)
    expected = learn(partitions(through, make, rounds=rounds), through, range(8))
    first = partitions(stopped, make, rounds=rounds)
    values, state = learn(first, stopped, range(5)), deepcopy(first.state_dict())
    second = partitions(resumed, make, rounds=rounds)
    second.load_state_dict(state)  # before its first step
    with torch.no_grad():
        for parameter, value in zip(resumed, values, strict=True):
            parameter.copy_(value)
    assert equal(learn(second, resumed, range(5, 8)), expected)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "SGD with momentum"])
def test_half_precision_weights_follow_float32_where_they_would_stall(name: str) -> None:
    make = MAKERS[name]
    exact, rounded, still = (
        nn.Parameter(torch.ones(100, 100, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.bfloat16)
    )
    optimizers = [
        make([{"params": [exact], "lr": 1e-4}]),
        PartitionedOptimizer([{"params": [rounded], "lr": 1e-4}], make, lambda _: None, rounds=True, seed=0),
        make([{"params": [still], "lr": 1e-4}]),
    ]
    for _ in range(20):
        for parameter, optimizer in zip((exact, rounded, still), optimizers, strict=True):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    moved = 1 - exact.mean(dtype=torch.float64)
    assert torch.equal(still, torch.ones_like(still))
    torch.testing.assert_close(1 - rounded.mean(dtype=torch.float64), moved, rtol=0.05, atol=0)


@pytest.mark.parametrize("name", [name for name, known in OPTIMIZERS.items() if known.installed])
def test_every_listed_optimizer_trains_in_half_precision_and_resumes(name: str) -> None:
    options = OptimizerOptions(optimizer_type=name, learning_rate=1.0 if OPTIMIZERS[name].one_rate else 1e-3)

    def made() -> tuple[PartitionedOptimizer, nn.Parameter]:
        weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.bfloat16))
        optimizer = PartitionedOptimizer(
            [{"params": [weight]}], lambda groups: make_optimizer(options, groups), lambda _: 0, rounds=True, seed=0
        )
        train_mode(optimizer)
        return optimizer, weight

    through, expected = made()
    learn(through, [expected], range(8))  # RAdam without a schedule waits for six steps
    stopped, weight = made()
    learn(stopped, [weight], range(7))
    resumed, again = made()
    resumed.load_state_dict(deepcopy(stopped.state_dict()))
    again.data.copy_(weight.data)
    learn(resumed, [again], range(7, 8))
    assert (expected != 0).any()
    assert torch.equal(again, expected)


def test_surrogates_have_memory_only_within_a_step() -> None:
    parameters = weights(torch.bfloat16)
    seen = []

    class Watching(SGD):
        def step(self, closure: Any = None) -> Any:
            seen.append([p.untyped_storage().nbytes() for group in self.param_groups for p in group["params"]])
            return super().step(closure)

    optimizer = partitions(parameters, Watching, rounds=True)
    learn(optimizer, parameters, range(1))
    assert [all(sizes) for sizes in seen] == [True] * 3
    surrogates = [p for p in optimizer.representative.param_groups[0]["params"]]
    assert [(p.untyped_storage().nbytes(), p.grad) for p in surrogates] == [(0, None)] * len(surrogates)


@pytest.mark.parametrize("make", [MAKERS["AdamW"], MAKERS["our own AdamW"]], ids=["number", "tensor"])
def test_a_schedule_acts_on_every_partition_also_after_loading(make: Make) -> None:
    def train_plan(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[Tensor]:
        scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
        for step in range(6):
            learn(optimizer, parameters, range(step, step + 1))
            scheduler.step()
            if step == 2:
                optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
        return [parameter.detach() for parameter in parameters]

    whole, parts = weights(), weights()
    expected = train_plan(whole, make(groups_of(whole)))
    assert equal(train_plan(parts, partitions(parts, make)), expected)


def test_a_schedule_may_also_write_betas() -> None:
    def train_plan(parameters: list[nn.Parameter], optimizer: Optimizer) -> list[Tensor]:
        scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
        for step in range(6):
            learn(optimizer, parameters, range(step, step + 1))
            if step < 5:
                scheduler.step()
        return [parameter.detach() for parameter in parameters]

    whole, parts = weights(), weights()
    expected = train_plan(whole, MAKERS["AdamW"](groups_of(whole)))
    assert equal(train_plan(parts, partitions(parts, MAKERS["AdamW"])), expected)


def test_partitions_are_stepped_within_the_backward_pass_and_not_once_more() -> None:
    whole, parts = weights(), weights()
    plain, optimizer = MAKERS["AdamW"](groups_of(whole)), partitions(parts, MAKERS["AdamW"])
    waiting = {key: len(of_key) for key, of_key in weights_by_key(optimizer).items()}
    open_ = dict(waiting)

    def done(parameter: nn.Parameter) -> None:
        (key,) = (key for key, of_key in weights_by_key(optimizer).items() if any(p is parameter for p in of_key))
        open_[key] -= 1
        if not open_[key]:
            optimizer.step_partition(key)
            open_[key] = waiting[key]
            for p in weights_by_key(optimizer)[key]:
                p.grad = None

    for parameter in parts:
        parameter.register_post_accumulate_grad_hook(done)
    for _ in range(3):
        for parameters, one in ((whole, plain), (parts, optimizer)):
            torch.stack([(p**2).sum() for p in parameters]).sum().backward()
            one.step()
            one.zero_grad()
    assert equal([p.detach() for p in parts], [p.detach() for p in whole])


def test_step_runs_each_partition_and_skips_those_without_gradients() -> None:
    parameters, order = weights(), []

    @contextmanager
    def resident(key: Any) -> Iterator[None]:
        order.append(("in", key))
        yield
        order.append(("out", key))

    optimizer = partitions(parameters, MAKERS["AdamW"], resident=resident)
    before = [parameter.detach().clone() for parameter in parameters]
    for i in (0, 2, 5):
        parameters[i].grad = torch.ones_like(parameters[i])
    optimizer.step()
    assert order == [("in", 0), ("out", 0), ("in", 2), ("out", 2)]
    moved = [not torch.equal(parameter, old) for parameter, old in zip(parameters, before, strict=True)]
    assert moved == [True, False, True, False, False, True]


@pytest.mark.parametrize("rounds", [False, True])
def test_a_schedule_free_optimizer_switches_between_train_and_eval(rounds: bool) -> None:
    parameters = weights(torch.bfloat16 if rounds else torch.float32)
    optimizer = partitions(parameters, lambda groups: AdamWScheduleFree(groups, lr=0.1), rounds=rounds)
    assert is_schedule_free(optimizer)
    train_mode(optimizer)
    trained = learn(optimizer, parameters, range(4))
    eval_mode(optimizer)
    assert not equal([parameter.detach() for parameter in parameters], trained)
    train_mode(optimizer)
    near = {"rtol": 2**-6, "atol": 2**-6} if rounds else {}
    torch.testing.assert_close([parameter.detach() for parameter in parameters], trained, **near)


def test_the_facade_exposes_the_optimizer_within() -> None:
    optimizer = partitions(weights(), lambda groups: Adafactor(groups, lr=1e-3, relative_step=False))
    assert isinstance(updater(optimizer), Adafactor)
    assert optimizer.defaults["relative_step"] is False
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.01]
    assert [len(of_key) for of_key in weights_by_key(optimizer).values()] == [2, 2, 2]
    assert optimizer.param_groups[1]["name"] == "last"


def test_a_state_of_other_partitions_is_refused_in_a_sentence() -> None:
    parameters = weights()
    one = PartitionedOptimizer(groups_of(parameters), MAKERS["AdamW"], lambda _: None, rounds=False, seed=0)
    with pytest.raises(ValueError, match="the optimizer has 3 partitions, but its state has 1"):
        partitions(weights(), MAKERS["AdamW"]).load_state_dict(one.state_dict())
