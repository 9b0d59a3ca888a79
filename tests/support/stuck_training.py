"""A training by several processes, the first of which gets stuck. A launcher starts it from nothing, so it imports
no more than it needs."""

import os
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from sd_scripts.families.common.family import StepInputs
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.process import sigterm
from tests.support.training import run

LONG = 150.0
"""Seconds to save a state: the machine may be busy."""
FOR_EVER = 100 * LONG


def train_in_group(config: Path, marker: Path, stuck: str = "") -> int:
    """In a process of its own. The first one never ends its third step, or compiling for the second shape of batch, if
    it gets `stuck` there; then `marker` is there."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    sigterm.SAVE_TIME = LONG
    if stuck:
        sigterm.STEP_TIME = 2 * sigterm.LOOK  # the step does not end, however long one waits
    if os.environ["RANK"] == "0" and stuck == "in a step":
        _get_stuck_in_a_step(marker)
    if stuck == "compiling":
        _get_stuck_while_compiling(marker)
    return run(["--config_file", str(config)], config.parent / "out", "flux").status


def _get_stuck_in_a_step(marker: Path) -> None:
    micro_step, steps = Eager.micro_step, count(1)

    def noted(eager: Eager, inputs: StepInputs) -> torch.Tensor:
        if next(steps) == 3:
            _sleep_for_ever(marker)
        return micro_step(eager, inputs)

    Eager.micro_step = noted  # type: ignore[method-assign]


def _get_stuck_while_compiling(marker: Path) -> None:
    from tests.support.backends import backends  # imports the compiler

    shapes: set[Any] = set()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
        shapes.update(x.shape[1] for x in inputs if x.ndim == 3 and x.shape[1] in (32, 40))  # 16 of them are text
        if len(shapes) > 1 and os.environ["RANK"] == "0":
            _sleep_for_ever(marker)
        return graph.forward

    backends()["eager"] = backend


def _sleep_for_ever(marker: Path) -> None:
    marker.touch()
    time.sleep(FOR_EVER)
