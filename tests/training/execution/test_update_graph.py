"""Updates that are recorded and replayed: the same weights as without, and what happens if they cannot be.

What replays here executes the update again; test_step_graphs_cuda replays CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.library.optim.optimizers import keeps_update_from_recording
from sd_scripts.library.optim.partitioned_optimizer import PartitionedOptimizer
from sd_scripts.library.optim.rounding_adamw import RoundingAdamW
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import EmaOptions
from sd_scripts.training.execution.eager import HalfScaler
from sd_scripts.training.execution.recorded import WARM_UP, Recorded, RecordedUpdates
from sd_scripts.training.execution.runner import Launch
from sd_scripts.training.saving.ema import Ema
from tests.training.execution.test_step_graphs import (
    Learner,
    Rerun,
    full,
    halves,
    inputs,
    lora,
    masters_of_another_optimizer,
)

STEPS = 14
FIRST = 2 * WARM_UP + 1
"""The step whose update is the first to be recorded: gradients lie where graphs write them from step WARM_UP + 1 on."""
ONE, SEVERAL = [(2,)], [(1, 2), (3,), (1, 2), (2, 1)]


@dataclass
class Twin:
    """A learner whose steps and updates are recorded, and one that runs as usual."""

    make: Callable[[Path], Learner]
    folder: Path
    accumulation: int = 1
    ema: EmaOptions | None = None
    more: Callable[[], dict[str, Any]] = dict
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plain, self.recorded = (self.make(self.folder / name) for name in ("plain", "recorded"))
        self.averages = [Ema(each.trainable, self.ema) if self.ema else None for each in (self.plain, self.recorded)]
        self.recorder = Rerun(self.recorded)
        self.usual, self.eager = (each.eager(self.accumulation, **self.more()) for each in (self.plain, self.recorded))
        updates = RecordedUpdates(self.eager, self.recorder, self.warnings.append)
        self.step = Recorded(self.eager, Rerun(self.recorded), self.recorded.told.append, updates)

    def train(self, shapes: list[tuple[int, ...]] = ONE, *, steps: range = range(STEPS), scale: float = 1.0) -> None:
        for number in steps:
            self._step(self.usual, self.plain, self.averages[0], shapes[number % len(shapes)], number, scale)
            self._step(self.step, self.recorded, self.averages[1], shapes[number % len(shapes)], number, scale)
        self.compare()

    @staticmethod
    def _step(
        step: Launch, learner: Learner, ema: Ema | None, rows: tuple[int, ...], number: int, scale: float
    ) -> None:
        dtype = next(learner.model.parameters()).dtype
        for i, n in enumerate(rows):
            step.micro_step(inputs(n, 10 * number + i, dtype, scale))
        step.update(ema if ema and ema.due(number + 1) else None)

    def compare(self) -> None:
        """Weights, the model's copies, EMA and optimizer are the same, bit for bit."""
        ours, wanted = (
            [
                *each.trainable.state_dict().values(),
                *each.model.parameters(),
                *(ema.average.values() if ema else ()),
                *(value for held in each.optimizer.state_dict()["state"].values() for value in held.values()),
            ]
            for each, ema in zip((self.recorded, self.plain), self.averages[::-1], strict=True)
        )
        assert len(ours) == len(wanted)
        assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(ours, wanted, strict=True))


@pytest.fixture(autouse=True)
def kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """RoundingAdamW is recorded here as with its kernels, which need a GPU."""
    monkeypatch.setattr(RoundingAdamW, "updates_by_kernels_alone", staticmethod(lambda plans: True))


def eight_bits(folder: Path) -> Learner:
    return full(folder, optimizer_type="AdamW8bit")


def average(interval: int = 1) -> EmaOptions:
    return EmaOptions(use_ema=True, ema_update_interval=interval, ema_device="gpu")


@pytest.mark.parametrize(
    ("make", "shapes"), [*product([lora, full, halves, eight_bits, masters_of_another_optimizer], [ONE, SEVERAL])]
)
def test_a_recorded_update_trains_identically(
    make: Callable[[Path], Learner], shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    twin = Twin(make, tmp_path, accumulation=max(map(len, shapes)))
    twin.train(shapes)
    assert (twin.recorder.recorded, twin.warnings) == (1, [])


def test_the_update_is_recorded_once_gradients_stay_in_place_and_it_has_run_as_usual(tmp_path: Path) -> None:
    twin = Twin(lora, tmp_path)
    twin.train(steps=range(FIRST - 1))
    assert twin.recorder.recorded == 0
    twin.train(steps=range(FIRST - 1, FIRST))
    assert twin.recorder.recorded == 1


@pytest.mark.parametrize(("interval", "graphs"), [(1, 1), (2, 2), (STEPS, 1)])
def test_the_average_is_part_of_it(interval: int, graphs: int, tmp_path: Path) -> None:
    twin = Twin(full, tmp_path, ema=average(interval))
    twin.train()
    assert twin.recorder.recorded == graphs


def test_an_average_on_the_cpu_follows_it(tmp_path: Path) -> None:
    twin = Twin(lora, tmp_path, ema=EmaOptions(use_ema=True, ema_device="cpu"))
    twin.train()
    assert twin.recorder.recorded == 1


def fused(folder: Path) -> Learner:
    """Its rate is a tensor, as on a GPU."""
    learner = lora(folder)
    groups = [{"params": group["params"], "lr": torch.tensor(1e-2)} for group in learner.trainable.parameter_groups()]
    learner.optimizer = torch.optim.AdamW(groups, fused=True)
    return learner


def test_a_recorded_update_reads_the_rates_of_the_schedule(tmp_path: Path) -> None:
    twin = Twin(fused, tmp_path)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each.optimizer, lambda step: (step + 1) / STEPS)
        for each in (twin.plain, twin.recorded)
    ]
    for number in range(STEPS):
        twin.train(steps=range(number, number + 1))
        for schedule in schedules:
            schedule.step()
    assert twin.recorder.recorded == 1


def test_gradients_that_overflow_are_skipped_and_lower_the_loss_scale(tmp_path: Path) -> None:
    twin = Twin(fused, tmp_path, more=scaled)
    scalers = [each.scaler for each in (twin.usual, twin.eager) if each.scaler]
    twin.train(steps=range(FIRST + 1))
    before = scalers[1].get_scale()
    twin.train(steps=range(FIRST + 1, FIRST + 2), scale=1e36)
    assert scalers[1].get_scale() == before / 2
    twin.train(steps=range(FIRST + 2, STEPS))
    assert scalers[0].state_dict() == scalers[1].state_dict()
    assert twin.recorder.recorded == 1


@pytest.mark.parametrize("make", [lora, halves])
def test_a_step_that_is_not_finite_is_skipped(make: Callable[[Path], Learner], tmp_path: Path) -> None:
    twin = Twin(make, tmp_path)
    twin.train(steps=range(FIRST + 1))
    twin.train(steps=range(FIRST + 1, FIRST + 2), scale=float("inf"))
    twin.train(steps=range(FIRST + 2, STEPS))
    assert all(bool(tensor.isfinite().all()) for tensor in twin.recorded.trainable.state_dict().values())


def scaled() -> dict[str, Any]:
    return {"scaler": HalfScaler("cpu", init_scale=2.0**10, growth_interval=3)}


@pytest.mark.parametrize("make", [lora, full, halves])
def test_an_update_that_cannot_be_recorded_is_reported_once_and_runs_as_usual(
    make: Callable[[Path], Learner], tmp_path: Path
) -> None:
    """It fails at its end, as what waits for the GPU does: all of it ran on the CPU by then, but nothing on the GPU."""
    twin = Twin(make, tmp_path)

    def record(run: Callable[[], Any]) -> Any:
        weights = [*twin.recorded.trainable.state_dict().values(), *twin.recorded.model.parameters()]
        state = twin.recorded.optimizer.state.values()
        weights += [each for held in state for each in held.values() if isinstance(each, Tensor)]
        weights += twin.recorded.trainable.gradients.named().values()
        before = [tensor.detach().clone() for tensor in weights]
        run()
        for tensor, value in zip(weights, before, strict=True):
            tensor.data.copy_(value)
        raise RuntimeError("it waits\nfor the GPU")

    twin.recorder.record = record  # type: ignore[method-assign]
    twin.train()
    assert twin.warnings == ["RuntimeError: it waits"]


def test_gradients_are_unscaled_again_if_recording_fails_after_that(tmp_path: Path) -> None:
    twin = Twin(fused, tmp_path, more=scaled)

    def record(run: Callable[[], Any]) -> Any:
        (gradients,) = twin.recorded.trainable.gradients.named().values()
        before = gradients.clone()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(twin.recorded.trainable.gradients, "clip", waits)
            try:
                run()
            finally:
                gradients.copy_(before)

    def waits(_: float) -> Tensor:
        raise RuntimeError("it waits for the GPU")

    twin.recorder.record = record  # type: ignore[method-assign]
    twin.train()
    assert twin.warnings == ["RuntimeError: it waits for the GPU"]


def test_an_optimizer_that_computes_without_kernels_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    twin = Twin(halves, tmp_path)
    twin.train()
    assert (twin.recorder.recorded, twin.warnings) == (0, [])


@pytest.mark.parametrize("make", [lora, full, halves])
def test_forgotten_graphs_are_recorded_again(make: Callable[[Path], Learner], tmp_path: Path) -> None:
    twin = Twin(make, tmp_path)
    twin.train(steps=range(FIRST + 1))
    twin.step.forget()
    twin.train(steps=range(FIRST + 1, 2 * FIRST + 2))
    assert twin.recorder.recorded == 2


@pytest.mark.parametrize("make", [lora, halves])
def test_the_update_is_recorded_again_after_loading_a_state(make: Callable[[Path], Learner], tmp_path: Path) -> None:
    twin = Twin(make, tmp_path)
    twin.train(steps=range(FIRST + 1))
    for each in (twin.plain, twin.recorded):
        each.optimizer.load_state_dict(each.optimizer.state_dict())
    twin.train(steps=range(FIRST + 1, STEPS))
    assert twin.recorder.recorded == 2


def test_a_schedule_of_betas_keeps_updates_as_usual(tmp_path: Path) -> None:
    twin = Twin(fused, tmp_path)
    for number in range(STEPS):
        for each in (twin.plain, twin.recorded):
            each.optimizer.param_groups[0]["betas"] = (0.9 - number / 100, 0.99)
        twin.train(steps=range(number, number + 1))
    assert twin.recorder.recorded == 0


@pytest.mark.parametrize("make", [lora, full, halves])
def test_micro_steps_that_are_not_recorded_mix_with_recorded_ones(
    make: Callable[[Path], Learner], tmp_path: Path
) -> None:
    """A gradient of an eager micro-step is moved to where the recorded update reads it."""
    twin = Twin(make, tmp_path, accumulation=2)
    for number in range(STEPS):
        rare = number >= FIRST and number % 3 == 0
        twin.train([(number,) if rare else (2, 1)], steps=range(number, number + 1))
    assert twin.recorder.recorded == 1
    twin.step.micro_step(inputs(STEPS, 0, next(twin.recorded.model.parameters()).dtype))
    assert twin.recorded.trainable.gradients.settle()


def test_optimizers_name_what_keeps_them_from_being_recorded() -> None:
    def why(name: str, *, scaled: bool = False, **values: Any) -> str:
        options = OptimizerOptions(optimizer_type=name)
        weights = [nn.Parameter(torch.zeros(2))]
        group = {"params": weights, "lr": torch.tensor(0.1), "capturable": True}
        optimizer: torch.optim.Optimizer = values.get("made") or torch.optim.AdamW([group])
        return keeps_update_from_recording(optimizer, options, scaled=scaled, processes=values.get("processes", 1))

    weights = [nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    ours = RoundingAdamW(weights)
    parts = PartitionedOptimizer([{"params": weights, "lr": 0.1}], RoundingAdamW, id, rounds=False, seed=0)
    found = [
        why("AdamW"),
        why("AdamW", made=ours),
        why("AdamW", made=ours, scaled=True),
        why("AdamW", made=parts),
        why("AdamW", made=torch.optim.AdamW(weights)),
        why("Prodigy"),
        why("AdamW", processes=2),
    ]
    assert found == [
        "",
        "",
        "the CPU reads whether a gradient has overflowed",
        "weights are updated in parts",
        "AdamW is not fused or not capturable with these optimizer_args",
        "Prodigy needs the CPU in each step",
        "the processes average their gradients",
    ]
