"""Start a training script, watch its events until enough steps are timed, and end it, so that it saves nothing."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs import nvidia
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.run_state import RunState
from sd_scripts.training.parent_watchdog import TIMED

ROOT = Path(__file__).parents[2]
WARM_UP = 10
"""Steps before the timed ones; with several buckets they meet most of them."""
POLL = 0.2
"""Seconds between two looks at the run and the GPU."""
GIB = 2**30


@dataclass(kw_only=True)
class Run:
    """What was seen of one run: its own events, its memory, and the GPU meanwhile."""

    began: float
    events: list[dict[str, Any]] = field(default_factory=list)
    resident: int = 0
    """Most bytes of main memory that its process had at once."""
    gpu: list[tuple[float, float]] = field(default_factory=list)
    """Percent of the time in which a kernel ran, and bytes of GPU memory in use, during the timed steps."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def steps(self) -> list[float]:
        """Seconds of each step, as the trainer measures them: without a synchronization of the GPU in each step."""
        return [event["seconds"] for event in self.of("step")]

    @property
    def timed(self) -> list[float]:
        return self.steps[WARM_UP:]

    @property
    def start(self) -> float:
        """Seconds from the start of the program to the end of its first step."""
        first = next(event for event in self.of("phase") if event["name"] in ("compiling", "training"))
        return float(first["time"]) - self.began + self.steps[0]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]

    @property
    def allocated(self) -> int:
        """Peak bytes of tensors on the GPU in the whole run, caching included."""
        return max(self.phases.values(), default=0)

    @property
    def phases(self) -> dict[str, int]:
        """Peak bytes of tensors on the GPU, by phase."""
        state = RunState()
        for event in self.events:
            state.apply(event)
        return state.vram_of_phases

    @property
    def images_per_step(self) -> float:
        return float(self.of("started")[0]["images_per_step"])

    @property
    def compiled(self) -> dict[str, int]:
        """Graphs, recompiles and breaks."""
        last = (self.of("compile") or [{}])[-1]
        return {name: last.get(name, 0) for name in ("graphs", "recompiles", "breaks")}


class Stopped(Exception):
    """Raised if a run ends before its steps are timed."""

    def __init__(self, run: Run, console: str):
        super().__init__(console)
        self.run = run

    @property
    def why(self) -> str:
        """Return the sentence that the run gave for its failure, else the end of its console."""
        failed = self.run.of("failed")
        return str(failed[-1].get("error")) if failed else str(self).strip().rpartition("\n")[2]


def timed_run(
    script: str,
    options: Mapping[str, Any],
    folder: Path,
    steps: int,
    *,
    flags: Sequence[str] = (),
    tree: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    each_look: Callable[[int], object] = lambda done: None,
) -> Run:
    """Run a training script of `tree` below `folder` until it has done `steps` steps.

    `each_look` is called with the steps done whenever the run is looked at; what it raises ends the run. Raises Stopped
    if the run ends by itself before that.
    """
    run_folder = RunFolder(folder / "run")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own = {"output_dir": str(folder), "run_dir": str(run_folder.path)}
    write_toml(folder / "options.toml", {**options, **own})
    command = [sys.executable, str(tree / "sd_scripts" / script), "--config_file", str(folder / "options.toml"), *flags]
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    with (folder / "console.txt").open("wb") as console:
        run = Run(began=time.time())
        process = subprocess.Popen(
            command,
            stdout=console,
            stderr=console,
            env={**os.environ, "PYTHONPATH": path, TIMED: "1", **(environment or {})},
            start_new_session=True,
        )
    events = run_folder.events()
    try:
        while len(run.steps) < steps and process.poll() is None:
            time.sleep(POLL)
            run.events += events
            each_look(len(run.steps))
            with contextlib.suppress(psutil.Error):
                run.resident = max(run.resident, psutil.Process(process.pid).memory_info().rss)
            if len(run.steps) > WARM_UP and (seen := look_at_gpu()):
                run.gpu.append(seen)
    finally:
        end(process)
    run.events += events
    if len(run.steps) < steps:
        raise Stopped(run, (folder / "console.txt").read_text(errors="replace")[-3000:])
    last = next(n for n, event in enumerate(run.events) if event["kind"] == "step" and event.get("step") == steps)
    del run.events[last + 1 :]
    return run


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run and the processes that it has started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def look_at_gpu() -> tuple[float, float] | None:
    """Return what nvidia-smi says: percent of the time in which a kernel ran, and bytes in use; None without it."""
    with contextlib.suppress(ValueError):  # [N/A] on some GPUs, nothing without one
        busy, mib = map(float, nvidia.query("utilization.gpu,memory.used"))
        return busy, mib * 2**20
    return None
