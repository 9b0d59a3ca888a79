"""Micro-steps that are recorded and replayed: the same gradients as without, and what happens if recording fails.

What replays here executes the step again, on the recorded tensors; test_step_graphs_cuda replays CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.families.common.family import StepInputs
from sd_scripts.networks.plan import parameter_groups
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.recorded import WARM_UP, Recorded
from sd_scripts.training.execution.recorder import RecordingFailed
from sd_scripts.training.execution.runner import Launch
from sd_scripts.training.methods.full import Full
from sd_scripts.training.methods.lora import LoraTrainable
from sd_scripts.training.methods.method import Trainable
from tests.support.networks.lora import adapt
from tests.training.methods.test_full_encoders import components, context, family

WIDTH, STEPS = 4, 16
SHAPES: dict[str, tuple[list[tuple[int, ...]], int]] = {
    "one shape": ([(2,)], 1),
    "two shapes": ([(2,), (3,)], 2),
    "accumulated": ([(1, 2), (3,), (1, 2), (2, 1)], 5),
    "accumulated, the second one recorded first": ([(1, 2), (3, 2)], 3),
}
"""Rows of the micro-batches of each step in turn, and graphs: shapes have one as the first of a step, one as later."""


@dataclass
class Again:
    """Executes a run again, beginning with the gradients that were there when it was recorded. Only the first time,
    which stands for the recording too, does it change Python attributes."""

    run: Callable[[], Tensor | None]
    result: Tensor
    gradients: dict[nn.Parameter, Tensor | None]
    trainable: Trainable
    new: bool = True

    def replay(self) -> None:
        if self.new:
            self.new = False
            self._run()
            return
        now = {parameter: parameter.grad for parameter in self.gradients}
        attributes = dict(vars(self.trainable.gradients))
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self._run()
        for parameter, gradient in now.items():
            parameter.grad = gradient
        vars(self.trainable.gradients).update(attributes)

    def _run(self) -> None:
        result = self.run()
        if result is not None:
            self.result.copy_(result)


@dataclass
class Rerun:
    """Records code to be executed again."""

    learner: "Learner"
    fails: Exception | None = None
    recorded: int = 0
    room: bool = True

    def has_room(self) -> bool:
        return self.room

    def record(self, run: Callable[[], Any]) -> tuple[Again, Any]:
        if self.fails:
            raise self.fails
        self.recorded += 1
        trainable = self.learner.trainable
        trained = (each for group in self.learner.optimizer.param_groups for each in group["params"])
        gradients = {each: each.grad for each in (*self.learner.model.parameters(), *trained)}
        again = Again(run, torch.zeros(()), gradients, trainable)
        return again, again.result


@dataclass
class Learner:
    model: nn.Module
    trainable: Trainable
    optimizer: torch.optim.Optimizer
    told: list[int] = field(default_factory=list)

    def loss(self, inputs: StepInputs) -> Tensor:
        return (self.model(inputs.model["x"]).float() - inputs.model["target"]).square().mean(dim=1)

    def eager(self, accumulation: int = 1, **more: Any) -> Eager:
        return Eager(
            trainable=self.trainable,
            optimizer=self.optimizer,
            loss=self.loss,
            inputs=lambda *_: pytest.fail("micro-steps are called directly"),
            accumulation=accumulation,
            **more,
        )

    def recorded(self, recorder: "Rerun", accumulation: int = 1) -> Recorded:
        return Recorded(self.eager(accumulation), recorder, self.told.append)


def lora(_: Path) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    network = adapt(model)
    trainable = LoraTrainable(network, parameter_groups(network), [model])
    return Learner(model, trainable, torch.optim.AdamW(trainable.parameter_groups()))


def full(folder: Path, **values: Any) -> Learner:
    torch.manual_seed(0)
    given, model = context(folder, **{"mixed_precision": "bf16", "max_grad_norm": 1.0, **values}), components(0)
    trained = family(0)
    Full().change_base(trained, model, given, "denoiser")
    trainable = Full().prepare(trained, model, given)
    return Learner(model.denoiser, trainable, trainable.make_optimizer(given.settings[OptimizerOptions]))


def halves(folder: Path) -> Learner:
    return full(folder, full_bf16=True)


def masters_of_another_optimizer(folder: Path) -> Learner:
    return full(folder, optimizer_type="SGD")


def inputs(rows: int, seed: int, dtype: torch.dtype, scale: float = 1.0) -> StepInputs:
    generator = torch.Generator().manual_seed(seed)
    x, target = (torch.randn(rows, WIDTH, generator=generator) for _ in range(2))
    return StepInputs(model={"x": x.to(dtype) * scale, "target": target * scale}, text={})


def train(learner: Learner, step: Launch, shapes: list[tuple[int, ...]]) -> list[float]:
    """Losses of the steps."""
    dtype = next(learner.model.parameters()).dtype
    losses = []
    for number in range(STEPS):
        rows = shapes[number % len(shapes)]
        losses += [float(step.micro_step(inputs(n, 10 * number + i, dtype))) for i, n in enumerate(rows)]
        step.update(None)
    return losses


@pytest.mark.parametrize("make", [lora, full, halves, masters_of_another_optimizer])
@pytest.mark.parametrize(("shapes", "graphs"), SHAPES.values(), ids=SHAPES)
def test_a_recorded_step_trains_identically(
    make: Callable[[Path], Learner], shapes: list[tuple[int, ...]], graphs: int, tmp_path: Path
) -> None:
    plain, replayed = make(tmp_path / "1"), make(tmp_path / "2")
    recorder = Rerun(replayed)
    count = max(map(len, shapes))
    expected = train(plain, plain.eager(count), shapes)
    assert train(replayed, replayed.recorded(recorder, count), shapes) == expected
    assert recorder.recorded == graphs
    assert replayed.told == list(range(1, graphs + 1))
    wanted = plain.trainable.state_dict()
    assert wanted
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in replayed.trainable.state_dict().items())


def test_the_first_steps_run_as_usual(tmp_path: Path) -> None:
    learner = lora(tmp_path)
    recorder = Rerun(learner)
    step = learner.recorded(recorder)
    for number in range(WARM_UP + 1):
        assert recorder.recorded == 0
        step.micro_step(inputs(2, number, torch.float32))
        step.update(None)
    assert recorder.recorded == 1


def test_a_step_that_cannot_be_recorded_runs_as_usual_afterwards(tmp_path: Path) -> None:
    learner, plain = lora(tmp_path), lora(tmp_path)
    recorder = Rerun(learner, fails=RuntimeError("it waits\nfor the GPU"))
    step, expected = learner.recorded(recorder), plain.eager()
    for number in range(WARM_UP + 2):
        given = inputs(2, number, torch.float32)
        expected.micro_step(given)
        expected.update(None)
        if number == WARM_UP:
            with pytest.raises(RecordingFailed, match=r"^RuntimeError: it waits$") as caught:
                step.micro_step(given)
            assert caught.value.none_left
            learner.trainable.gradients.discard()
        step.micro_step(given)
        step.update(None)
    assert torch.equal(learner.trainable.state_dict()["masters"], plain.trainable.state_dict()["masters"])


@pytest.mark.parametrize("room", [True, False])
def test_recorded_shapes_are_still_replayed_when_a_new_one_cannot_be_recorded(room: bool, tmp_path: Path) -> None:
    learner = lora(tmp_path)
    recorder = Rerun(learner)
    step = learner.recorded(recorder)
    for number in range(WARM_UP + 1):
        step.micro_step(inputs(2, number, torch.float32))
        step.update(None)
    recorder.room = room
    recorder.fails = torch.OutOfMemoryError("CUDA out of memory") if room else None
    for _ in range(WARM_UP):
        step.micro_step(inputs(3, 0, torch.float32))
        step.update(None)
    why = "OutOfMemoryError: CUDA out of memory" if room else "too little GPU memory is free"
    with pytest.raises(RecordingFailed, match=f"^{why}$") as caught:
        step.micro_step(inputs(3, 0, torch.float32))
    assert not caught.value.none_left
    learner.trainable.gradients.discard()
    for rows in (3, 2, 3):  # recorded or not
        step.micro_step(inputs(rows, 0, torch.float32))
        step.update(None)
    assert recorder.recorded == 1


def test_forgotten_graphs_are_recorded_again(tmp_path: Path) -> None:
    learner, plain = lora(tmp_path), lora(tmp_path)
    recorder = Rerun(learner)
    step, expected = learner.recorded(recorder), plain.eager()
    for number in range(2 * WARM_UP + 3):
        for each in (step, expected):
            each.micro_step(inputs(2, number, torch.float32))
            each.update(None)
        if number == WARM_UP:
            step.forget()
    assert recorder.recorded == 2
    assert torch.equal(learner.trainable.state_dict()["masters"], plain.trainable.state_dict()["masters"])


def test_graphs_make_room_for_batches_that_do_not_fit_next_to_them(tmp_path: Path) -> None:
    learner = lora(tmp_path)
    recorder = Rerun(learner)
    eager = learner.eager()
    step = Recorded(eager, recorder, learner.told.append)
    free = [False]

    def large(given: StepInputs) -> Tensor:
        if len(given.model["x"]) == 3 and not free[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return learner.loss(given)

    eager.loss = large
    for number in range(WARM_UP + 1):
        step.micro_step(inputs(2, number, torch.float32))
        step.update(None)
    with pytest.raises(RecordingFailed, match="do not fit into GPU memory next to") as caught:
        step.micro_step(inputs(3, 0, torch.float32))
    assert caught.value.none_left
    free[0] = True
    learner.trainable.gradients.discard()
    for rows in (3, 2, 2, 2):
        step.micro_step(inputs(rows, 0, torch.float32))
        step.update(None)
    assert recorder.recorded == 1
    free[0] = False
    with pytest.raises(torch.OutOfMemoryError):  # nothing is left to be freed
        step.micro_step(inputs(3, 0, torch.float32))
