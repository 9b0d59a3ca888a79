"""Reports the steps of a run as events, on a progress bar and to trackers. Losses are read late, without a sync."""

import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor
from tqdm import tqdm

from sd_scripts.training.context import Context, Failed
from sd_scripts.training.execution.runner import StepResult
from sd_scripts.training.process.device_memory import SpillWatch, driver_moves_memory
from sd_scripts.training.process.error_hints import nonfinite_hint
from sd_scripts.training.progress import Progress
from sd_scripts.training.step_clock import Lap

AVERAGE_OVER = 100
"""Steps in the moving average of the loss."""
LAG = 2
"""Steps after which a loss is read even if that means waiting, so that the CPU cannot run ahead without bound."""
MEMORY_EVERY = 1.0
"""Seconds between two readings of the process's RAM, which is a system call."""


@dataclass(frozen=True, kw_only=True)
class WaitingStep:
    """A step whose loss is not known yet."""

    report: dict[str, Any]
    shape: str
    lap: Lap
    values: Tensor
    """Loss and, if it is checked, gradient norm, in main memory once `ready`."""
    ready: torch.cuda.Event | None


class StepReporter:
    """Collects losses as tensors and reports each step once its loss has arrived."""

    def __init__(self, context: Context, max_steps: int, start: int, max_nonfinite: int = 1):
        """`max_nonfinite`: non-finite steps in a row that end the run; 1 where one would corrupt the weights."""
        self._context, self._max_nonfinite = context, max_nonfinite
        self.nonfinite_steps = 0
        """Consecutive non-finite steps up to the last one."""
        self._process = psutil.Process()
        self._looked = -math.inf
        self._waiting: deque[WaitingStep] = deque()
        self._recent: deque[float] = deque(maxlen=AVERAGE_OVER)
        self._shape = ""
        watches = context.device.type == "cuda" and driver_moves_memory()
        self._spill = SpillWatch(context.memory.size()) if watches else None
        self._bar = tqdm(total=max_steps, initial=start, unit="step", disable=not context.is_main, smoothing=0.1)

    def step(self, progress: Progress, rates: dict[str, float], result: StepResult, checks_norm: bool) -> None:
        """Queue a step. Its shape is reported if it differs from the previous step's. `checks_norm`: its
        gradient norm must be finite too."""
        assert result.lap, "steps are timed"
        shape = result.shape
        loss = result.loss
        report = {"step": progress.step, "epoch": progress.epoch, "lr": rates}
        if shape != self._shape:
            report["shape"] = self._shape = shape
        if checks_norm and result.norm is not None:
            loss = torch.stack((loss.float(), result.norm.float()))  # one copy
        ready = None
        if loss.is_cuda:
            loss = loss.to("cpu", non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        self._waiting.append(WaitingStep(report=report, shape=shape, lap=result.lap, values=loss, ready=ready))
        while self._waiting and (len(self._waiting) > LAG or self._arrived()):
            self._report_oldest()

    def flush(self) -> None:
        """Wait for all losses. Call it before saving, so that no file is written after a non-finite loss."""
        while self._waiting:
            self._report_oldest()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._bar.close()

    def _arrived(self) -> bool:
        ready = self._waiting[0].ready
        return ready is None or ready.query()

    def _report_oldest(self) -> None:
        waiting = self._waiting.popleft()
        if waiting.ready:
            waiting.ready.synchronize()
        report = waiting.report | {"seconds": waiting.lap.seconds()}
        if self._spill and (
            spilled := self._spill.step(waiting.shape, report["seconds"], self._context.memory.reserved())
        ):
            self._context.warn_once("spill", spilled)
        loss, *norm = waiting.values.view(-1).tolist()
        finite = math.isfinite(loss)
        if finite and all(map(math.isfinite, norm)):
            self.nonfinite_steps = 0
        else:
            self._nonfinite(report["step"], "the gradient is not finite" if finite else "the loss is not finite")
        if finite:
            self._recent.append(loss)
        average = sum(self._recent) / len(self._recent) if self._recent else None
        with contextlib.suppress(OSError):  # a full disk under the console's file
            if average is not None:
                self._bar.set_postfix(loss=f"{average:.4f}", refresh=False)
            self._bar.update()
        self._context.emit("step", **report, loss=loss if finite else None, average=average, **self._memory())
        losses = {"loss/current": loss, "loss/average": average} if finite else {}
        rates = {f"lr/{name}": rate for name, rate in report["lr"].items()}
        self._context.trackers.log({**losses, **rates}, report["step"])

    def _nonfinite(self, step: int, what: str) -> None:
        """Warn about a skipped step; raise Failed if it is one too many."""
        self.nonfinite_steps += 1
        if self.nonfinite_steps >= self._max_nonfinite:
            row = f" ({self.nonfinite_steps} steps in a row)" if self.nonfinite_steps > 1 else ""
            raise Failed(f"{what} at step {step}{row}", nonfinite_hint(self._context.settings))
        self._context.warn(f"{what} at step {step}; the step is skipped")

    def _memory(self) -> dict[str, Any]:
        """Return the phase's peaks of GPU bytes, the RAM and readings of the GPU, at most every MEMORY_EVERY seconds:
        reading is slow."""
        now = time.perf_counter()
        if now - self._looked < MEMORY_EVERY or not self._context.is_main:
            return {}
        self._looked = now
        memory = self._context.memory
        peaks = {"vram": memory.phase_peak(), "reserved": memory.peak_reserved()}
        readings = memory.readings()
        return {**peaks, "ram": self._process.memory_info().rss, **({"gpu": readings} if readings else {})}
