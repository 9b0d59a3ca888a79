"""The route of the GPUs in the page's header: how busy and full they are, and how much of that is ours."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import psutil
from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.server.json_routes import get
from sd_scripts.machine.gpu_usage import GpuUsage, all_gpus
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunRow, gpus_overlap


def routes(queue: RunQueue, read: Callable[[], Sequence[GpuUsage]] = all_gpus) -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    return [get("gpus", lambda request: gpus(request, queue, read))]


def gpus(request: Request, queue: RunQueue, read: Callable[[], Sequence[GpuUsage]]) -> dict[str, Any]:
    """Return a reading of every GPU; none without an NVIDIA driver. `ours` is null where it is not known."""
    readings = read()
    if not readings:  # no need to look for our processes
        return {"gpus": []}
    living = queue.store.living()
    pids = _own_processes(living)
    return {"gpus": [_reading(usage, pids, living, queue) for usage in readings]}


def _reading(usage: GpuUsage, pids: set[int], living: Sequence[RunRow], queue: RunQueue) -> dict[str, Any]:
    here = [row for row in living if gpus_overlap(row.gpus, str(usage.number))]
    ours = usage.used_by(pids)
    # in a container the driver names processes by the host's ids, and none is ours
    known = ours is not None and (ours > 0 or not here or not usage.processes)
    return {
        "number": usage.number,
        "name": usage.name,
        "busy": usage.busy,
        "used": usage.used,
        "total": usage.total,
        "ours": ours if known else None,
        "celsius": usage.celsius,
        "watts": usage.watts,
        "watt_limit": usage.watt_limit,
        "spilled": max((_spilled(queue, row) for row in here), default=0) * usage.total / 100,
    }


def _spilled(queue: RunQueue, row: RunRow) -> float:
    """Return the memory that a run last had beyond its GPU's, in percent of it."""
    spilled = queue.watch(row.id).refresh().gpu.get("spilled")
    return (spilled.last or 0) if spilled else 0


def _own_processes(living: Sequence[RunRow]) -> set[int]:
    """Return the ids of the page's process and of the runs, which outlive it, with all that they started."""
    keys = [row.process.partition(" ")[0] for row in living]
    leaders = {os.getpid(), *(int(key) for key in keys if key.isdecimal())}
    found = set(leaders)
    for leader in leaders:
        try:
            found.update(child.pid for child in psutil.Process(leader).children(recursive=True))
        except psutil.Error:  # it ended in the meantime
            continue
    return found
