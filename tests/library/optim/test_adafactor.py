"""Adafactor: the update of transformers' class, and weights in half precision are trained too."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import optimization

from sd_scripts.library.optim.adafactor import Adafactor
from sd_scripts.library.optim.optimizers import description, make_optimizer
from sd_scripts.options.optimization.optimizer import OptimizerOptions

USUAL: dict[str, Any] = {"lr": 1e-2, "relative_step": False, "scale_parameter": False}
SHAPES: list[tuple[int, ...]] = [(), (7,), (30, 20), (1, 5), (6, 4, 3, 3)]


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=g).to(dtype)) for shape in SHAPES]


def learn(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        g = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=g).to(parameter.dtype)
        optimizer.step()


def tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize(
    "arguments",
    [
        USUAL,
        {**USUAL, "weight_decay": 0.1, "clip_threshold": 0.5, "decay_rate": -0.6},
        {**USUAL, "beta1": 0.9},
        {"lr": 1e-2, "relative_step": False},
        {"warmup_init": True},
    ],
    ids=str,
)
def test_float32_weights_train_as_with_transformers(arguments: dict[str, Any]) -> None:
    ours, theirs = weights(torch.float32), weights(torch.float32)
    mine, other = Adafactor(ours, **arguments), optimization.Adafactor(theirs, **arguments)
    learn(mine, ours, range(4))
    learn(other, theirs, range(4))
    for weight, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, wanted, rtol=1e-5, atol=1e-6)
        assert mine.state[weight].keys() == other.state[wanted].keys()
        for name, value in tensors(mine.state[weight]).items():
            torch.testing.assert_close(value, other.state[wanted][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_follow_float32_where_they_would_stall(dtype: torch.dtype) -> None:
    exact, ours, still = (nn.Parameter(torch.ones(100, 100, dtype=d)) for d in (torch.float32, dtype, dtype))
    arguments = {**USUAL, "lr": 1e-4}
    optimizers = [
        optimization.Adafactor([exact], **arguments),
        Adafactor([ours], **arguments),
        optimization.Adafactor([still], **arguments),
    ]
    for _ in range(20):
        for weight, optimizer in zip((exact, ours, still), optimizers, strict=True):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    assert torch.equal(still, torch.ones_like(still))
    moved = 1 - exact.mean(dtype=torch.float64)
    torch.testing.assert_close(1 - ours.mean(dtype=torch.float64), moved, rtol=0.05, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_resumes_bit_for_bit(dtype: torch.dtype) -> None:
    def made(seed: int) -> tuple[Adafactor, list[nn.Parameter]]:
        parameters = weights(dtype)
        return Adafactor(
            [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:]}], seed=seed, **USUAL
        ), parameters

    through, expected = made(5)
    learn(through, expected, range(6))
    stopped, before = made(5)
    learn(stopped, before, range(4))
    state = deepcopy(stopped.state_dict())
    resumed, again = made(9)  # the seed comes from the state
    resumed.load_state_dict(state)
    with torch.no_grad():
        for weight, value in zip(again, before, strict=True):
            weight.copy_(value)
    learn(resumed, again, range(4, 6))
    for weight, wanted in zip(again, expected, strict=True):
        assert torch.equal(weight, wanted)
        held, stays = tensors(resumed.state[weight]), tensors(through.state[wanted])
        assert all(torch.equal(held[name], value) and value.dtype == torch.float32 for name, value in stays.items())
    assert state["state"][2]["step"] == 4


def test_a_state_of_transformers_resumes() -> None:
    through, ours = weights(torch.float32), weights(torch.float32)
    before, after = optimization.Adafactor(through, **USUAL), Adafactor(ours, **USUAL)
    learn(before, through, range(3))
    after.load_state_dict(deepcopy(before.state_dict()))
    with torch.no_grad():
        for weight, value in zip(ours, through, strict=True):
            weight.copy_(value)
    learn(before, through, range(3, 5))
    learn(after, ours, range(3, 5))
    torch.testing.assert_close(ours, through, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"lr": 1.0}, "with relative_step it sets its own rate, so lr must be unset"),
        ({"lr": 1.0, "relative_step": False, "warmup_init": True}, "warmup_init needs relative_step"),
        ({"eps": 1e-8}, r"eps = 1e-08 is not two numbers, such as \(1e-30, 1e-3\)"),
    ],
    ids=str,
)
def test_unsupported_arguments_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Adafactor(weights(torch.float32), **arguments)


def test_adafactor_has_the_name_that_other_programs_use() -> None:
    options = OptimizerOptions(optimizer_type="adafactor", optimizer_args=["relative_step=False"], learning_rate=0.1)
    optimizer = make_optimizer(options, [{"params": weights(torch.bfloat16)}], rounding=True, seed=7)
    assert type(optimizer) is Adafactor
    assert optimizer.param_groups[0]["seed"] == 7
    assert description(optimizer, options) == "transformers.optimization.Adafactor(relative_step=False)"
