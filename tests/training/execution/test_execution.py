"""Failed steps are repeated in a different way as long as no weight has changed; and a step's time."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.common.family import StepInputs
from sd_scripts.training.compiling import compiler as compiler_module
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.compiling.recovery import Recovery
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.execution.fallback import Fallback
from sd_scripts.training.execution.recorder import RecordingFailed
from sd_scripts.training.step_clock import StepClock
from tests.training.execution.test_step_graphs import Learner, inputs, lora
from tests.training.methods.test_full_encoders import components, context, family


@dataclass(frozen=True)
class Rows:
    """A batch of this many rows."""

    count: int

    @property
    def extent(self) -> Extent:
        return Extent(8, 8)

    def __len__(self) -> int:
        return self.count


@dataclass
class Failing:
    """Runs the step of an Eager, whose first micro-step or update fails after it has computed something."""

    eager: Eager
    in_update: bool = False
    steps: int = 0

    def step(self, batches: Any) -> Any:
        self.steps += 1
        return self.eager.step(batches, self)

    def micro_step(self, given: StepInputs) -> torch.Tensor:
        loss = self.eager.micro_step(given)
        if not self.in_update:
            raise RecordingFailed("it waits for the GPU", none_left=True, out_of_memory=False)
        return loss

    def update(self, ema: Any) -> torch.Tensor | None:
        self.eager.update(ema)
        raise RecordingFailed("it waits for the GPU", none_left=True, out_of_memory=False)

    def forget(self) -> None: ...


def eager_of(learner: Learner) -> Eager:
    """Its batches are drawn by step and number."""
    eager = learner.eager(accumulation=2)
    eager.inputs = lambda batch, number: inputs(len(batch), 10 * eager.progress.step + number, torch.float32)
    return eager


@pytest.fixture
def fallback(tmp_path: Path) -> Callable[[Eager, Failing], Fallback]:
    def make(eager: Eager, failing: Failing) -> Fallback:
        given = context(tmp_path)
        compiler = Compiler(given, family(0), components(0), [])
        ways = [[failing, eager], [eager]]
        return Fallback(eager, Recovery(given, compiler), lambda: ways.pop(0) if len(ways) > 1 else ways[0])

    return make


def test_the_compiler_is_waited_for_when_compilations_are_counted_and_not_before(tmp_path: Path) -> None:
    read = threading.Event()
    started = threading.Thread(target=read.wait, args=(30.0,))
    started.start()
    compiler_module._warming.append(started)
    compiler = Compiler(context(tmp_path), family(0), components(0), [])
    assert started.is_alive(), "weights can be read in the meantime"
    read.set()
    assert compiler.log.totals().graphs == 0
    assert not started.is_alive()


def test_a_step_that_fails_before_its_update_is_repeated_by_the_next_runner(
    fallback: Callable[[Eager, Failing], Fallback], tmp_path: Path
) -> None:
    learner, plain = lora(tmp_path), lora(tmp_path)
    eager, expected = eager_of(learner), eager_of(plain)
    failing = Failing(eager)
    runner = fallback(eager, failing)
    batches: Any = [Rows(2), Rows(3)]
    for _ in range(3):
        assert torch.equal(runner.step(batches).loss, expected.step(batches).loss)
    assert failing.steps == 1
    assert eager.progress.step == 3
    assert torch.equal(learner.trainable.state_dict()["masters"], plain.trainable.state_dict()["masters"])


def test_an_error_in_the_update_ends_the_run_since_weights_may_have_changed(
    fallback: Callable[[Eager, Failing], Fallback], tmp_path: Path
) -> None:
    eager = eager_of(lora(tmp_path))
    failing = Failing(eager, in_update=True)
    batches: Any = [Rows(2), Rows(3)]
    with pytest.raises(RecordingFailed, match="it waits"):
        fallback(eager, failing).step(batches)
    assert failing.steps == 1


def test_the_shape_of_a_step_is_empty_if_its_batches_differ(tmp_path: Path) -> None:
    eager = eager_of(lora(tmp_path))
    one: Any = [Rows(2), Rows(2)]
    several: Any = [Rows(2), Rows(3)]
    assert eager.step(one).shape == "8x8x2"
    assert eager.step(several).shape == ""


def test_weights_may_be_read_until_the_update_begins(tmp_path: Path) -> None:
    """By the thread that saves them when a signal comes."""
    eager = eager_of(lora(tmp_path))
    seen: list[bool] = []

    class Consistent:
        def __enter__(self) -> None:
            seen.append(eager.repeatable)

        def __exit__(self, *error: object) -> None:
            seen.append(eager.repeatable)

    eager.consistent = Consistent
    batches: Any = [Rows(2)]
    eager.step(batches)
    assert seen == [True, False]


def test_time_while_the_clock_is_paused_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = StepClock(torch.device("cpu"))
    now[0] = 3.0
    with clock.paused():
        now[0] = 10.0
    now[0] = 11.0
    assert clock.lap().seconds() == 4.0
    now[0] = 13.0
    assert clock.lap().seconds() == 2.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_takes_the_time_of_the_gpu_not_the_time_to_launch_it() -> None:
    clock = StepClock(torch.device("cuda"))
    laps = []
    for cycles in (50_000_000, 500_000_000, 50_000_000):
        torch.cuda._sleep(cycles)
        laps.append(clock.lap())
    assert not laps[-1].is_over()
    torch.cuda.synchronize()
    short, long, again = (lap.seconds() for lap in laps)
    assert 5 < long / short < 20
    assert 5 < long / again < 20
