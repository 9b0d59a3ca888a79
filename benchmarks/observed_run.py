"""Timed runs whose memory, CPU time and GPU are observed, too, and which can be paused."""

import contextlib
import math
import os
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sd_scripts.machine import nvidia
from sd_scripts.tools.timed_run import WARM_UP, Run, Running, Stopped


@dataclass(kw_only=True)
class ObservedRun(Run):
    """A run with its memory, and the GPU during it."""

    resident: int = 0
    """Most bytes of main memory that its processes had at a time."""
    gpu: list[tuple[float, float]] = field(default_factory=list)
    """Percent of the time in which a kernel ran, and bytes of GPU memory in use, during the timed steps."""
    cpu: tuple[float, int] = (0.0, 0)
    """Seconds of CPU time that its processes took for the timed steps, and how many they were."""
    warm_up: int = WARM_UP
    """Steps before the timed ones."""
    left_out: set[int] = field(default_factory=set)
    """Steps after the warm-up that are not timed, counted from 0."""

    @property
    def timed(self) -> list[float]:
        return [seconds for part in self.parts for seconds in part]

    @property
    def parts(self) -> list[list[float]]:
        """Seconds of the timed steps, separated where steps are left out."""
        parts: list[list[float]] = []
        last = None
        for n, seconds in enumerate(self.steps):
            if n >= self.warm_up and n not in self.left_out:
                if last != n - 1:
                    parts.append([])
                parts[-1].append(seconds)
                last = n
        return parts

    @property
    def recording(self) -> float:
        """Seconds that the steps after the first one, in which steps are recorded, took longer than the timed ones."""
        usual = statistics.median(self.timed)
        return sum(max(0.0, seconds - usual) for seconds in self.steps[1 : self.warm_up])

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]

    @property
    def images_per_step(self) -> float:
        return float(self.of("started")[0]["images_per_step"])


class ObservedRunning(Running):
    kind = ObservedRun
    run: ObservedRun

    def look(self) -> None:
        """Read the run's new events and its memory."""
        super().look()
        with contextlib.suppress(psutil.Error):
            resident = sum(process.memory_info().rss for process in self._trainers())
            self.run.resident = max(self.run.resident, resident)

    def look_at_gpu(self) -> None:
        """Record nvidia-smi's figures, if there is one."""
        if seen := look_at_gpu():
            self.run.gpu.append(seen)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the training processes so far, in seconds."""
        with contextlib.suppress(psutil.Error):
            times = [process.cpu_times() for process in self._trainers()]
            return float(sum(each.user + each.system for each in times))
        return 0.0

    def _trainers(self) -> list[psutil.Process]:
        """Return the processes that train: the one that was started, or the ones that it launched."""
        started = psutil.Process(self._process.pid)
        return started.children() if self._launched else [started]

    def pause(self) -> None:
        """Stop the run and the processes it has started, until `resume`; on Windows not possible."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)


def observed_run(
    script: str,
    options: Mapping[str, Any],
    folder: Path,
    steps: int,
    *,
    flags: Sequence[str] = (),
    launcher: Sequence[str] = (),
    warm_up: int = WARM_UP,
    most_seconds: float = math.inf,
) -> ObservedRun:
    """Run a training script as timed_run does, and observe it from the end of the warm-up on. Raises Stopped also if
    that takes more than `most_seconds`."""
    running = ObservedRunning(script, options, folder, flags=flags, launcher=launcher)
    running.run.warm_up = warm_up
    warm: tuple[float, int] | None = None

    def observe(run: Run) -> None:
        nonlocal warm
        if time.time() - run.began > most_seconds:
            raise Stopped(run, f"not done after {most_seconds:.0f} s, with {running.done} steps")
        if running.done > warm_up:
            running.look_at_gpu()
            warm = warm or (running.cpu_seconds(), running.done)
            running.run.cpu = running.cpu_seconds() - warm[0], running.done - warm[1]

    running.watch(steps, observe)
    return running.run


def launch_processes(count: int, *, fsdp: bool) -> list[str]:
    """Return the launcher of `count` processes on a GPU each, with the whole model, or a shard of it (`fsdp`)."""
    if count == 1:
        return []
    kind = ["--use_fsdp", "--fsdp_version", "2"] if fsdp else ["--multi_gpu"]
    several = ["--num_processes", str(count), "--num_machines", "1", "--main_process_port", "0"]
    return ["-m", "accelerate.commands.launch", *kind, *several, "--mixed_precision", "no", "--dynamo_backend", "no"]


def look_at_gpu() -> tuple[float, float] | None:
    """Return nvidia-smi's figures: percent of the time in which a kernel ran, and bytes in use; None without it."""
    with contextlib.suppress(ValueError):  # [N/A] on some GPUs, nothing without one
        busy, mib = map(float, nvidia.query_first("utilization.gpu", "memory.used"))
        return busy, mib * 2**20
    return None
