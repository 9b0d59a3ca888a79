"""A process that is killed in the middle of full training, twice in a row, continues as if nothing had happened."""

import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.runs.folder import RunFolder
from tests.support.suite.fresh import PATIENCE, processes
from tests.support.training import equal, train_whole

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that fork"),
    pytest.mark.usefixtures("no_graphs"),
]

STATES = {"max_train_steps": 6, "save_every_n_steps": 1, "save_state": True, "save_precision": "float"}
WITHIN = {"mixed_precision": "bf16", "full_bf16": True, "fused_backward_pass": True, "blocks_to_swap": 2}
"""test_kill has masters and averages."""
COMPILED = {"compile": True, "compile_backend": "eager"}


def test_a_run_killed_twice_in_a_row_equals_an_uninterrupted_one(flux_miniature: Any, tmp_path: Path) -> None:
    """Also if the rest is compiled: Dynamo's graphs call the same kernels in the same order."""
    values = {**STATES, **WITHIN}
    whole = train_whole(flux_miniature, tmp_path / "whole", **values)
    assert whole.status == 0
    wanted = dict(zip(whole.steps, whole.losses, strict=True))

    output = tmp_path / "output"
    begun: list[int] = []
    for part, until in enumerate((1, 3)):
        settings = {**values, "run_dir": output / f"run{part}", **newest_state(output)}
        training = processes().Process(target=train_whole, args=(flux_miniature, output), kwargs=settings)
        training.start()
        kill_after(training, output / f"short-step{until:08d}-state")
        told = steps_told(output / f"run{part}")
        begun.append(min(told))
        assert told.items() <= wanted.items()
    assert not (output / "short.safetensors").exists()

    rest = train_whole(flux_miniature, output, **values, **COMPILED, **newest_state(output))
    assert rest.status == 0
    assert 1 == begun[0] < begun[1] < rest.steps[0] < rest.steps[-1] == 6
    assert rest.losses == whole.losses[rest.steps[0] - 1 :]
    models = [name for name in whole.files if name.endswith(".safetensors")]
    assert "short.safetensors" in models
    assert [name for name in models if not equal(rest.tensors(name), whole.tensors(name))] == []


def newest_state(output: Path) -> dict[str, Path]:
    """As a user would look for it."""
    states = sorted(output.glob("short-step*-state"))
    return {"resume": states[-1]} if states else {}


def kill_after(training: BaseProcess, state: Path) -> None:
    """With SIGKILL, as soon as that state is there."""
    deadline = time.monotonic() + PATIENCE
    while not state.exists() and training.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)
    training.kill()
    training.join()
    assert training.exitcode == -9
    assert state.exists()


def steps_told(run_dir: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in RunFolder(run_dir).events() if event["kind"] == "step"}
