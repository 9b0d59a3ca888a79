"""The header's GPUs: which memory is ours, and that nothing is asked where there is no GPU."""

import os
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.runs import gpu_routes
from sd_scripts.machine.gpu_usage import GpuUsage
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore

GB = 10**9


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(RunStore(tmp_path / "runs.sqlite"))


def shown(queue: RunQueue, *readings: GpuUsage) -> list[dict[str, Any]]:
    app = Starlette(routes=gpu_routes.routes(queue, lambda: readings))
    gpus: list[dict[str, Any]] = TestClient(app).get("/studio/gpus").json()["gpus"]
    return gpus


def reading(**more: Any) -> GpuUsage:
    return GpuUsage(**{"number": 0, "name": "NVIDIA H200", "used": 20 * GB, "total": 141 * GB, **more})


def test_a_machine_without_gpus_shows_none(queue: RunQueue) -> None:
    assert shown(queue) == []
    assert TestClient(Starlette(routes=gpu_routes.routes(queue))).get("/studio/gpus").status_code == 200


def test_memory_of_this_program_and_of_others_are_shown_apart(queue: RunQueue) -> None:
    (gpu,) = shown(queue, reading(processes=((os.getpid(), 3 * GB), (1, 17 * GB)), busy=0.5, celsius=40.0))
    assert (gpu["ours"], gpu["used"], gpu["busy"], gpu["celsius"], gpu["watts"]) == (3 * GB, 20 * GB, 0.5, 40, None)
    assert gpu["spilled"] == 0


def test_ours_is_not_known_where_the_driver_does_not_say_it(queue: RunQueue) -> None:
    assert shown(queue, reading(processes=((os.getpid(), None),)))[0]["ours"] is None
    (first, second) = shown(queue, reading(processes=()), reading(number=1, processes=((1, GB),)))
    assert (first["ours"], second["ours"]) == (0, 0)
