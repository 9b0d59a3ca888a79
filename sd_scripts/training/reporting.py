"""What the run tells of its steps: events, a progress bar, trackers. Losses are read late, never waited for."""

import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor
from tqdm import tqdm

from sd_scripts.training.context import Context, Failed
from sd_scripts.training.error_hints import nonfinite_hint

AVERAGE_OVER = 100
"""Steps that the average loss looks back."""
LAG = 2
"""Steps after which a loss is read even if that means waiting: with more, the CPU would run ahead without bound."""
MEMORY_EVERY = 1.0
"""Seconds between two looks at how much main memory the process has: it asks the system."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Of one optimizer step, all known to Python."""

    step: int
    epoch: int
    rates: dict[str, float]
    seconds: float


class Reporter:
    """Collects losses as tensors and tells each step as soon as its loss has arrived."""

    def __init__(self, context: Context, max_steps: int, start: int, max_nonfinite: int = 1):
        """`max_nonfinite`: steps in a row without a number that end the run; 1 where they would spoil the weights."""
        self._context, self._most_broken = context, max_nonfinite
        self.broken = 0
        """How many of the last steps had no number, all in a row."""
        self._process, self._looked = psutil.Process(), -math.inf
        self._waiting: deque[tuple[StepReport, Tensor, torch.cuda.Event | None]] = deque()
        self._recent: deque[float] = deque(maxlen=AVERAGE_OVER)
        self._bar = tqdm(total=max_steps, initial=start, unit="step", disable=not context.is_main, smoothing=0.1)
        self._clock = time.perf_counter()

    def resume(self) -> None:
        """What happened since the last step is no part of the next one's time."""
        self._clock = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, or since resume()."""
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        return seconds

    def step(self, facts: StepReport, loss: Tensor, norm: Tensor | None = None) -> None:
        """`loss`: of all micro-batches of all processes; `norm`: of the gradient, where it must be a number too. Both
        on the device."""
        if norm is not None:
            loss = torch.stack((loss.float(), norm.float()))  # one copy
        ready = None
        if loss.is_cuda:
            loss = loss.to("cpu", non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        self._waiting.append((facts, loss, ready))
        while self._waiting and (len(self._waiting) > LAG or self._arrived()):
            self._tell()

    def flush(self) -> None:
        """Wait for all losses: before anything is saved, so that no file comes from a loss that is no number."""
        while self._waiting:
            self._tell()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._bar.close()

    def _arrived(self) -> bool:
        ready = self._waiting[0][2]
        return ready is None or ready.query()

    def _tell(self) -> None:
        facts, tensor, ready = self._waiting.popleft()
        if ready:
            ready.synchronize()
        loss, *norm = tensor.view(-1).tolist()
        whole = math.isfinite(loss)
        if whole and all(map(math.isfinite, norm)):
            self.broken = 0
        else:
            self._nonfinite(facts.step, "the gradient is not a number" if whole else "the loss is not a number")
        if whole:
            self._recent.append(loss)
        average = sum(self._recent) / len(self._recent) if self._recent else None
        with contextlib.suppress(OSError):  # a full disk under the console's file
            if average is not None:
                self._bar.set_postfix(loss=f"{average:.4f}", refresh=False)
            self._bar.update()
        self._context.tell(
            "step",
            step=facts.step,
            epoch=facts.epoch,
            loss=loss if whole else None,
            average=average,
            lr=facts.rates,
            seconds=facts.seconds,
            **self._memory(),
        )
        losses = {"loss/current": loss, "loss/average": average} if whole else {}
        rates = {f"lr/{name}": rate for name, rate in facts.rates.items()}
        self._context.trackers.log({**losses, **rates}, facts.step)

    def _nonfinite(self, step: int, what: str) -> None:
        """Raises Failed where it is one too many."""
        self.broken += 1
        if self.broken >= self._most_broken:
            row = f", the {self.broken}. time in a row" if self.broken > 1 else ""
            raise Failed(f"{what} at step {step}{row}", nonfinite_hint(self._context.settings))
        self._context.warn(f"{what} at step {step}, from which nothing is learned")

    def _memory(self) -> dict[str, int]:
        """Bytes on the card at the peak and of this process, now and then: asking takes longer than telling."""
        now = time.perf_counter()
        if now - self._looked < MEMORY_EVERY or not self._context.log:
            return {}
        self._looked = now
        cuda = self._context.device.type == "cuda"
        return {
            "vram": torch.cuda.max_memory_allocated() if cuda else 0,
            "ram": self._process.memory_info().rss,
        }
