"""Start a training script, watch its events until enough steps are timed, and end it, so that it saves nothing."""

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.machine import nvidia
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.run_state import RunState
from sd_scripts.training.process.parent_watchdog import TIMED

ROOT = Path(__file__).parents[2]
WARM_UP = 10
"""Steps before the timed ones; with several buckets they meet most of them."""
OF_STEPS = ("compiling", "training")
"""Phases with which the first step begins."""
POLL = 0.2
"""Seconds between two readings of the run and the GPU."""
GIB = 2**30


@dataclass(kw_only=True)
class Run:
    """What was seen of one run: its own events, its memory, and the GPU during it."""

    began: float
    events: list[dict[str, Any]] = field(default_factory=list)
    resident: int = 0
    """Most bytes of main memory that its processes had at a time."""
    gpu: list[tuple[float, float]] = field(default_factory=list)
    """Percent of the time in which a kernel ran, and bytes of GPU memory in use, during the timed steps."""
    cpu: tuple[float, int] = (0.0, 0)
    """Seconds of CPU time that its processes took for the timed steps, and how many they were."""
    left_out: set[int] = field(default_factory=set)
    """Steps after the warm-up that are not timed, counted from 0."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def steps(self) -> list[float]:
        """Seconds of each step, as the trainer measures them: without a synchronization of the GPU in each step."""
        return [event["seconds"] for event in self.of("step")]

    @property
    def timed(self) -> list[float]:
        return [seconds for part in self.parts for seconds in part]

    @property
    def parts(self) -> list[list[float]]:
        """Seconds of the timed steps, separated where steps are left out."""
        found: list[list[float]] = []
        last = None
        for n, seconds in enumerate(self.steps):
            if n >= WARM_UP and n not in self.left_out:
                if last != n - 1:
                    found.append([])
                found[-1].append(seconds)
                last = n
        return found

    @property
    def start(self) -> float:
        """Seconds from the start of the program to the end of its first step."""
        begun = next(n for n, event in enumerate(self.events) if event["kind"] == "started")
        # modules are made ready to compile before it, and the compiler reports again during the first step
        first = next(each for each in self.events[begun:] if each["kind"] == "phase" and each["name"] in OF_STEPS)
        return float(first["time"]) - self.began + self.steps[0]

    @property
    def recording(self) -> float:
        """Seconds that the steps after the first one, in which steps are recorded, took longer than the timed ones."""
        usual = statistics.median(self.timed)
        return sum(max(0.0, seconds - usual) for seconds in self.steps[1:WARM_UP])

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
    def compiling(self) -> str:
        """How far compiling is, such as "3 of about 14 graphs"; empty while steps are trained."""
        last = next((event for event in reversed(self.events) if event["kind"] in ("phase", "step")), None)
        return str((last or {}).get("note") or "")

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


class Running:
    """A training script that runs below `folder`, and what was seen of it."""

    def __init__(
        self,
        script: str,
        options: Mapping[str, Any],
        folder: Path,
        *,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
    ):
        """`launcher`: arguments of Python that come before the script, such as from launch_processes."""
        run_folder = RunFolder(folder / "run")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        own = {"output_dir": str(folder), "run_dir": str(run_folder.path)}
        write_toml(folder / "options.toml", {**options, **own})
        config = ["--config_file", str(folder / "options.toml")]
        command = [sys.executable, *launcher, str(ROOT / "sd_scripts" / script), *config]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._launched = bool(launcher)
        self._console = folder / "console.txt"
        with self._console.open("wb") as console:
            self.run = Run(began=time.time())
            self._process = subprocess.Popen(
                [*command, *flags],
                stdout=console,
                stderr=console,
                env={**os.environ, "PYTHONPATH": path, TIMED: "1", **(environment or {})},
                start_new_session=True,
            )
        self._events = run_folder.events()

    @property
    def done(self) -> int:
        """Return how many steps the run has reported."""
        return len(self.run.steps)

    @property
    def ended(self) -> bool:
        """Return whether the run has ended by itself."""
        return self._process.poll() is not None

    def look(self) -> None:
        """Read the run's new events and its memory."""
        self.run.events += self._events
        with contextlib.suppress(psutil.Error):
            resident = sum(process.memory_info().rss for process in self._trainers())
            self.run.resident = max(self.run.resident, resident)

    def look_at_gpu(self) -> None:
        """Note what nvidia-smi says, if there is one."""
        if seen := look_at_gpu():
            self.run.gpu.append(seen)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the training processes so far, in seconds."""
        with contextlib.suppress(psutil.Error):
            times = [process.cpu_times() for process in self._trainers()]
            return float(sum(each.user + each.system for each in times))
        return 0.0

    def _trainers(self) -> list[psutil.Process]:
        """Return the processes that train: the one that was started, or those that it launched."""
        started = psutil.Process(self._process.pid)
        return started.children() if self._launched else [started]

    def pause(self) -> None:
        """Stop the run and the processes it has started, until `resume`; on Windows not possible."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """End the run and the processes that it has started."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def console(self) -> str:
        """Return the last of what the run has printed."""
        return self._console.read_text(errors="replace")[-3000:]

    def result(self, steps: int) -> Run:
        """Return what was seen of a run that has ended, up to this step. Stopped: it did not come that far."""
        self.look()
        if self.done < steps:
            raise Stopped(self.run, self.console())
        last = next(n for n, e in enumerate(self.run.events) if e["kind"] == "step" and e.get("step") == steps)
        del self.run.events[last + 1 :]
        return self.run


def timed_run(
    script: str,
    options: Mapping[str, Any],
    folder: Path,
    steps: int,
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
    each_look: Callable[[Run], object] = lambda run: None,
) -> Run:
    """Run a training script below `folder` until it has done `steps` steps.

    `each_look` is called with the run whenever it is looked at; what it raises ends the run. Raises Stopped if the run
    ends by itself before that.
    """
    running = Running(script, options, folder, flags=flags, environment=environment, launcher=launcher)
    warm: tuple[float, int] | None = None
    try:
        while running.done < steps and not running.ended:
            time.sleep(POLL)
            running.look()
            each_look(running.run)
            if running.done > WARM_UP:
                running.look_at_gpu()
                warm = warm or (running.cpu_seconds(), running.done)
                running.run.cpu = running.cpu_seconds() - warm[0], running.done - warm[1]
    finally:
        running.end()
    return running.result(steps)


def launch_processes(count: int, *, fsdp: bool) -> list[str]:
    """Return the launcher of `count` processes on a GPU each, which hold the whole model, or a shard of it (`fsdp`)."""
    if count == 1:
        return []
    kind = ["--use_fsdp", "--fsdp_version", "2"] if fsdp else ["--multi_gpu"]
    several = ["--num_processes", str(count), "--num_machines", "1", "--main_process_port", "0"]
    return ["-m", "accelerate.commands.launch", *kind, *several, "--mixed_precision", "no", "--dynamo_backend", "no"]


def look_at_gpu() -> tuple[float, float] | None:
    """Return what nvidia-smi says: percent of the time in which a kernel ran, and bytes in use; None without it."""
    with contextlib.suppress(ValueError):  # [N/A] on some GPUs, nothing without one
        busy, mib = map(float, nvidia.query_first("utilization.gpu", "memory.used"))
        return busy, mib * 2**20
    return None
