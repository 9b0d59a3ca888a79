"""Recorded passes of a denoiser: the same outputs as without, and what happens if recording fails.

What replays here computes the pass again, on the recorded tensors; test_generate_cuda replays CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sd_scripts.generating.recorded_forward import MOST, RecordedForward

CALLS = 5


class Scaled(nn.Linear):
    """A module with named inputs and a number, which returns several outputs."""

    def forward(self, x: Tensor, *, shift: Tensor | None = None, scale: float = 1.0) -> tuple[Tensor, ...]:  # type: ignore[override]
        y = super().forward(x) * scale
        return (y, y if shift is None else y + shift)


@dataclass
class Again:
    run: Callable[[], Any]
    output: Any

    def replay(self) -> None:
        pytree.tree_map(Tensor.copy_, self.output, self.run())


@dataclass
class Rerun:
    """Records code to be executed again."""

    fails: Exception | None = None
    room: bool = True
    asked: int = 0

    def has_room(self) -> bool:
        return self.room

    def record(self, run: Callable[[], Any]) -> tuple[Again, Any]:
        self.asked += 1
        if self.fails:
            raise self.fails
        output = pytree.tree_map(torch.empty_like, run())
        return Again(run, output), output


def waiting_for_cpu(run: Callable[[], Any]) -> tuple[Any, bool]:
    return run(), True


def waiting_for_gpu(run: Callable[[], Any]) -> tuple[Any, bool]:
    return run(), False


def inputs(rows: int, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * rows + number)
    return torch.randn(rows, 4, generator=generator), torch.randn(4, generator=generator)


@torch.no_grad()
def test_replayed_passes_return_the_outputs_of_the_module_and_do_not_change_earlier_ones() -> None:
    module = Scaled(4, 4)
    calls = [
        (x, shift, scale)
        for n in range(CALLS)
        for rows in (2, 3)
        for x, shift in [inputs(rows, n)]
        for scale in (1.0, 2.0)
    ]
    expected = [module(x, shift=shift, scale=scale) for x, shift, scale in calls]
    recorded = RecordedForward(module, Rerun(), waiting_for_cpu)
    made = [module(x, shift=shift, scale=scale) for x, shift, scale in calls]
    assert recorded.graphs == 4
    for one, other in zip(expected, made, strict=True):
        assert all(map(torch.equal, one, other))


@torch.no_grad()
def test_nothing_is_recorded_where_the_gpu_is_the_slower_one() -> None:
    module, recorder = Scaled(4, 4), Rerun()
    recorded = RecordedForward(module, recorder, waiting_for_gpu)
    for number in range(CALLS):
        module(inputs(2, number)[0])
    assert (recorder.asked, recorded.graphs) == (0, 0)


@pytest.mark.parametrize(
    ("recorder", "asked"), [(Rerun(fails=RuntimeError("cannot be recorded")), 1), (Rerun(room=False), 0)]
)
@torch.no_grad()
def test_a_pass_that_cannot_be_recorded_runs_as_usual_and_no_other_is_tried(recorder: Rerun, asked: int) -> None:
    module = Scaled(4, 4)
    calls = [inputs(rows, number)[0] for number in range(CALLS) for rows in (2, 3)]
    expected = [module(x)[0] for x in calls]
    recorded = RecordedForward(module, recorder, waiting_for_cpu)
    assert all(torch.equal(module(x)[0], y) for x, y in zip(calls, expected, strict=True))
    assert (recorder.asked, recorded.graphs) == (asked, 0)


@torch.no_grad()
def test_graphs_that_are_there_are_replayed_if_there_is_no_room_for_another() -> None:
    module, recorder = Scaled(4, 4), Rerun()
    recorded = RecordedForward(module, recorder, waiting_for_cpu)
    for rows in (2, 3):
        for number in range(CALLS):
            module(inputs(rows, number)[0])
        recorder.room = False
    calls = [inputs(rows, CALLS)[0] for rows in (2, 3)]
    made = [module(x)[0] for x in calls]
    assert (recorder.asked, recorded.graphs) == (1, 1)
    recorded.remove()
    assert all(torch.equal(y, module(x)[0]) for x, y in zip(calls, made, strict=True))


@torch.no_grad()
def test_changed_weights_are_in_replayed_passes() -> None:
    module = Scaled(4, 4)
    recorded = RecordedForward(module, Rerun(), waiting_for_cpu)
    x, _ = inputs(2, 0)
    for _ in range(CALLS):
        module(x)
    module.weight.copy_(torch.eye(4))
    module.bias.zero_()
    assert recorded.graphs == 1
    assert torch.equal(module(x)[0], x)


@torch.no_grad()
def test_no_more_than_a_few_graphs_are_kept() -> None:
    module = Scaled(4, 4)
    recorded = RecordedForward(module, Rerun(), waiting_for_cpu)
    for rows in range(1, MOST + 3):
        for _ in range(CALLS):
            module(inputs(rows, 0)[0])
    assert recorded.graphs == 2


@torch.no_grad()
def test_a_module_without_recording_is_as_before_and_its_graphs_are_freed() -> None:
    module = Scaled(4, 4)
    recorded = RecordedForward(module, Rerun(), waiting_for_cpu)
    x, _ = inputs(2, 0)
    for _ in range(CALLS):
        module(x)
    assert recorded.drop()
    assert not recorded.drop()
    module(x)
    assert recorded.graphs == 0
    recorded.remove()
    assert module.forward.__func__ is Scaled.forward  # type: ignore[attr-defined]


def test_a_pass_with_gradients_is_not_recorded() -> None:
    module, recorder = Scaled(4, 4), Rerun()
    RecordedForward(module, recorder, waiting_for_cpu)
    x, _ = inputs(2, 0)
    for _ in range(CALLS):
        module(x)[0].sum().backward()
    assert recorder.asked == 0
    assert module.weight.grad is not None
