"""Faults while a run trains: something happens in a step, a disk is full."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.training.reporting import StepReporter


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Do something while a step is under way: `during(step, do)`."""
    tell = StepReporter.step
    planned: dict[int, Callable[[], object]] = {}

    def told(reporter: StepReporter, facts: Any, *tensors: Any) -> None:
        planned.get(facts.step, lambda: None)()
        tell(reporter, facts, *tensors)

    monkeypatch.setattr(StepReporter, "step", told)
    return planned.__setitem__


@contextmanager
def file_system(place: Path, size: str) -> Iterator[Path]:
    """A folder that is a file system of this size; only root may mount one."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
