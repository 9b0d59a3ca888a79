"""compile_check_every: some steps also run eagerly, training stays the same, and a difference is reported."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sd_scripts.training.execution.checked import EagerStep, difference
from tests.support.backends import backends
from tests.support.miniatures import sdxl_settings
from tests.support.training import Run, equal, train, train_whole

COMPILED: dict[str, Any] = {"compile": True, "compile_backend": "eager", "gradient_accumulation_steps": 2}


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("start", [train, train_whole])
def test_a_check_reports_the_difference_and_leaves_training_unchanged(
    start: Any, any_miniature: Any, tmp_path: Path
) -> None:
    values = {**COMPILED, "gradient_checkpointing": True, "use_ema": True, "cache_latents": None}
    plain: Run = start(any_miniature, tmp_path / "plain", **values)
    torch._dynamo.reset()
    checked: Run = start(any_miniature, tmp_path / "checked", **values, compile_check_every=2)
    assert (checked.status, plain.status) == (0, 0)
    assert checked.losses == plain.losses
    assert equal(checked.tensors(), plain.tensors())
    assert plain.events_of("compile_check") == []
    (event,) = checked.events_of("compile_check")
    assert event["step"] == 2
    assert event["loss_difference"] == event["gradient_difference"] == 0  # this backend runs the same kernels
    assert not event["exceeds"]


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
def test_a_wrong_kernel_is_reported_with_one_warning(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return lambda *args: tuple(out * 1.01 if out.is_floating_point() else out for out in graph(*args))

    monkeypatch.setitem(backends(), "eager", wrong)
    checked = train(any_miniature, tmp_path / "run", **COMPILED, compile_check_every=2, max_train_steps=4)
    assert [event["step"] for event in checked.events_of("compile_check")] == [2, 4]
    for event in checked.events_of("compile_check"):
        assert event["exceeds"]
        assert event["gradient_difference"] > event["bound"] == 1e-3
    (warning,) = [event["text"] for event in checked.events_of("warning")]
    assert warning.startswith("compile_check_every: compiled and eager results of step 2 differ: loss by ")
    assert "Rounding in float32 explains up to 0.001." in warning


def test_a_difference_is_relative_to_the_largest_gradient_of_all() -> None:
    eager = EagerStep(loss=torch.tensor(2.0), gradients={"a": torch.tensor([1.0, -4.0]), "gone": torch.tensor([0.5])})
    found = difference(eager, torch.tensor(2.5), {"a": torch.tensor([1.0, -3.0]), "new": torch.tensor([-2.0])})
    assert (found.loss, found.gradients) == (0.25, 0.5)  # "new" is 2 apart from nothing
    found = difference(eager, torch.tensor(2.0), eager.gradients)
    assert (found.loss, found.gradients, found.finite) == (0.0, 0.0, True)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_result_is_reported_as_such(value: float) -> None:
    eager = EagerStep(loss=torch.tensor(1.0), gradients={"a": torch.ones(2)})
    assert not difference(eager, torch.tensor(value), eager.gradients).finite
    assert not difference(eager, torch.tensor(1.0), {"a": torch.tensor([1.0, value])}).finite


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"network_dropout": 0.1}, "network_dropout uses different random numbers when compiled"),
        ({"network_args": ["rank_dropout=0.1"]}, "rank_dropout in network_args uses different random numbers"),
        ({"compile": False, "network_dropout": 0.1}, ""),
        ({"network_args": ["rank_dropout=0"]}, ""),
    ],
)
def test_a_check_of_random_layers_is_refused(values: dict[str, Any], why: str) -> None:
    given = {"compile": True, "compile_check_every": 5, "train_data_dir": ".", "resolution": "64", **values}
    problems = [str(each) for each in sdxl_settings("model.safetensors", **given).problems()]
    found = [each for each in problems if each.startswith("compile_check_every: ")]
    assert len(found) == bool(why)
    assert all(each.startswith(f"compile_check_every: {why}") for each in found)


@pytest.mark.run
def test_a_check_of_a_fused_backward_pass_is_refused_before_the_model_loads(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_whole(any_miniature, tmp_path / "run", compile=True, compile_check_every=2, fused_backward_pass=True)
    assert run.status == 2
    assert "compile_check_every: fused_backward_pass updates weights within backward" in capsys.readouterr().err
