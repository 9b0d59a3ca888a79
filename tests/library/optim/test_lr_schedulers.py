"""The learning rate follows the named schedule."""

import math

import pytest
import torch
from torch import nn

from sd_scripts.library.optim.lr_schedulers import (
    advance,
    advance_to,
    dry_run,
    learning_rates,
    make_scheduler,
    resume_plateau,
)
from sd_scripts.library.optim.optimizers import make_optimizer
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.optimization.schedule_table import SCHEDULES

TOTAL = 100


def adamw(optimizer_type: str = "AdamW", rate: float = 1.0) -> torch.optim.Optimizer:
    options = OptimizerOptions(optimizer_type=optimizer_type, learning_rate=rate)
    return make_optimizer(options, [{"params": [nn.Parameter(torch.ones(2))]}])


def train_plan(options: LrSchedulerOptions) -> list[float]:
    """The rate at each of TOTAL steps and after the last."""
    optimizer = adamw()
    scheduler = make_scheduler(options, optimizer, TOTAL)
    rates = [learning_rates(scheduler)[0]]
    for _ in range(TOTAL):
        optimizer.step()
        advance(scheduler, torch.tensor(1.0))
        rates += learning_rates(scheduler)
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(rates[-1], abs=1e-6)
    return rates


def half_cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LrSchedulerOptions(), {0: 1, 50: 1, 100: 1}),
        (LrSchedulerOptions(lr_scheduler="constant_with_warmup", lr_warmup_steps=10), {0: 0, 5: 0.5, 10: 1, 100: 1}),
        (LrSchedulerOptions(lr_scheduler="constant_with_warmup", lr_warmup_steps=0.2), {10: 0.5, 20: 1}),
        (LrSchedulerOptions(lr_scheduler="linear", lr_warmup_steps=20), {10: 0.5, 20: 1, 60: 0.5, 100: 0}),
        (LrSchedulerOptions(lr_scheduler="cosine"), {0: 1, 25: half_cosine(0.25), 50: 0.5, 100: 0}),
        (
            LrSchedulerOptions(lr_scheduler="cosine_with_restarts", lr_scheduler_num_cycles=2),
            {0: 1, 25: 0.5, 50: 1, 75: 0.5},
        ),
        (LrSchedulerOptions(lr_scheduler="polynomial", lr_scheduler_power=2.0), {0: 1, 50: 0.25}),
        (LrSchedulerOptions(lr_scheduler="inverse_sqrt", lr_warmup_steps=10), {5: 0.5, 10: 1, 40: 0.5}),
        (
            LrSchedulerOptions(lr_scheduler="cosine_with_min_lr", lr_scheduler_min_lr_ratio=0.2),
            {0: 1, 50: 0.6, 100: 0.2},
        ),
        (
            LrSchedulerOptions(
                lr_scheduler="warmup_stable_decay",
                lr_warmup_steps=10,
                lr_decay_steps=0.5,
                lr_scheduler_min_lr_ratio=0.1,
            ),
            {10: 1, 49: 1, 75: 0.55, 100: 0.1},
        ),
        (
            LrSchedulerOptions(lr_scheduler="piecewise_constant", lr_scheduler_args=["step_rules='1:30,0.1:60,0.01'"]),
            {29: 1, 30: 0.1, 59: 0.1, 60: 0.01},
        ),
        (
            LrSchedulerOptions(
                lr_scheduler_type="torch.optim.lr_scheduler.StepLR", lr_scheduler_args=["step_size=40", "gamma=0.5"]
            ),
            {39: 1, 40: 0.5, 80: 0.25},
        ),
    ],
)
def test_the_rate_follows_its_schedule(options: LrSchedulerOptions, expected: dict[int, float]) -> None:
    rates = train_plan(options)
    assert {step: rates[step] for step in expected} == pytest.approx(expected, abs=1e-6)


def test_the_rate_falls_on_a_plateau() -> None:
    options = LrSchedulerOptions(
        lr_scheduler="reduce_lr_on_plateau", lr_scheduler_args=["patience=9", "factor=0.5", "cooldown=1000"]
    )
    rates = train_plan(options)
    assert (rates[9], rates[15], rates[100]) == (1.0, 0.5, 0.5)


def test_every_name_that_the_page_suggests_is_known() -> None:
    for name in SCHEDULES:
        arguments = ["step_rules='1'"] if name == "piecewise_constant" else []
        options = LrSchedulerOptions(lr_scheduler=name, lr_scheduler_args=arguments)
        make_scheduler(options, adamw("Adafactor" if name == "adafactor" else "AdamW"), TOTAL)


def test_the_rate_is_written_into_the_tensor_that_the_optimizer_reads() -> None:
    optimizer = adamw()
    rate = optimizer.param_groups[0]["lr"]
    scheduler = make_scheduler(LrSchedulerOptions(lr_scheduler="linear"), optimizer, TOTAL)
    optimizer.step()
    advance(scheduler, torch.tensor(0.0))
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.99)


@pytest.mark.parametrize("name", ["cosine", "reduce_lr_on_plateau", "constant"])
def test_a_saved_state_continues_where_it_stopped(name: str) -> None:
    options = LrSchedulerOptions(lr_scheduler=name)

    def begun() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = adamw()
        return optimizer, make_scheduler(options, optimizer, TOTAL)

    def walk(steps: int) -> None:
        for _ in range(steps):
            optimizer.step()
            advance(scheduler, torch.tensor(1.0))

    optimizer, scheduler = begun()
    walk(30)
    states = optimizer.state_dict(), scheduler.state_dict()
    optimizer, scheduler = begun()
    optimizer.load_state_dict(states[0])
    scheduler.load_state_dict(states[1])
    walk(20)
    resumed = learning_rates(scheduler)
    optimizer, scheduler = begun()
    walk(50)
    assert resumed == pytest.approx(learning_rates(scheduler))


@pytest.mark.parametrize("kind", ["AdamWScheduleFree", "Adafactor"])
def test_optimizers_with_a_rate_of_their_own_are_left_alone(kind: str) -> None:
    optimizer = adamw(kind, rate=0.5)
    scheduler = make_scheduler(LrSchedulerOptions(lr_scheduler="cosine"), optimizer, TOTAL)
    if kind == "AdamWScheduleFree":
        optimizer.train()  # type: ignore[attr-defined]
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(3):
        optimizer.step()
        advance(scheduler, torch.tensor(1.0))
    assert learning_rates(scheduler)[0] == pytest.approx(0.5 if kind == "AdamWScheduleFree" else 0.01, rel=0.1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (LrSchedulerOptions(lr_scheduler="sine"), "lr_scheduler: 'sine' is not one of constant, "),
        (LrSchedulerOptions(lr_warmup_steps=5), "lr_warmup_steps: constant has no warm-up"),
        (LrSchedulerOptions(lr_scheduler="adafactor:1e-4"), "lr_scheduler: adafactor works only with"),
        (LrSchedulerOptions(lr_scheduler="linear", lr_scheduler_args=["x=1"]), "lr_scheduler_args: linear .*'x'"),
        (LrSchedulerOptions(lr_scheduler="piecewise_constant"), "lr_scheduler_args: .*step_rules"),
        (
            LrSchedulerOptions(lr_scheduler_type="torch.optim.lr_scheduler.StepLR"),
            "lr_scheduler_args: torch.optim.lr_scheduler.StepLR does not accept these arguments .*step_size",
        ),
        (LrSchedulerOptions(lr_scheduler_type="no.Such"), "lr_scheduler_type: not found: 'no.Such'"),
    ],
)
def test_a_scheduler_that_cannot_be_created_is_reported_in_one_sentence(
    options: LrSchedulerOptions, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_scheduler(options, adamw(), TOTAL)


def test_mistakes_are_reported_without_a_model() -> None:
    assert dry_run(OptimizerOptions(), LrSchedulerOptions(lr_scheduler="cosine", lr_warmup_steps=0.1)) == []
    with pytest.raises(ValueError, match="optimizer_type: not found"):
        dry_run(OptimizerOptions(optimizer_type="AdamX"), LrSchedulerOptions())
    with pytest.raises(ValueError, match="lr_scheduler: 'sine' is not one of"):
        dry_run(OptimizerOptions(), LrSchedulerOptions(lr_scheduler="sine"))
    (remark,) = dry_run(OptimizerOptions(optimizer_type="AdamWScheduleFree"), LrSchedulerOptions(lr_scheduler="cosine"))
    assert "AdamWScheduleFree ignores them, since it needs no schedule" in remark


@pytest.mark.parametrize(
    "options",
    [
        LrSchedulerOptions(lr_scheduler="cosine", lr_warmup_steps=10),
        LrSchedulerOptions(lr_scheduler_type="torch.optim.lr_scheduler.ExponentialLR", lr_scheduler_args=["gamma=0.9"]),
    ],
    ids=["cosine", "exponential"],
)
def test_a_new_schedule_starts_at_the_current_step(options: LrSchedulerOptions) -> None:
    optimizer = adamw()
    scheduler = make_scheduler(options, optimizer, TOTAL)
    advance_to(scheduler, 40)
    expected = train_plan(options)[40]
    assert learning_rates(scheduler) == [pytest.approx(expected)]
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(expected)


def test_a_new_plateau_keeps_its_loss_history() -> None:
    options = LrSchedulerOptions(lr_scheduler="reduce_lr_on_plateau", lr_scheduler_args=["patience=1"])
    first = make_scheduler(options, adamw(), TOTAL)
    for loss in (1.0, 0.5, 0.6, 0.7, 0.8):
        advance(first, torch.tensor(loss))
    assert learning_rates(first) == [pytest.approx(0.1)]
    optimizer = adamw(rate=4.0)
    second = make_scheduler(options, optimizer, TOTAL)
    assert isinstance(second, torch.optim.lr_scheduler.ReduceLROnPlateau)
    resume_plateau(second, first.state_dict(), [1.0])
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.4)
    for loss in (0.8, 0.8):
        advance(second, torch.tensor(loss))
    assert learning_rates(second) == [pytest.approx(0.04)]
