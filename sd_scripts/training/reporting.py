"""What the run tells of its steps: events, a progress bar, trackers. Losses are read late, never waited for."""

import math
import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from sd_scripts.training.context import Context, Failed

AVERAGE_OVER = 100
"""Steps that the average loss looks back."""
LAG = 2
"""Steps after which a loss is read even if that means waiting: with more, the CPU would run ahead without bound."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Of one optimizer step, all known to Python."""

    step: int
    epoch: int
    rates: dict[str, float]
    seconds: float


class Reporter:
    """Collects losses as tensors and tells each step as soon as its loss has arrived."""

    def __init__(self, context: Context, max_steps: int, start: int):
        self._context = context
        self._waiting: deque[tuple[StepFacts, Tensor, torch.cuda.Event | None]] = deque()
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

    def step(self, facts: StepFacts, loss: Tensor) -> None:
        """`loss`: of all micro-batches of all processes, on the device."""
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
        self._bar.close()

    def _arrived(self) -> bool:
        ready = self._waiting[0][2]
        return ready is None or ready.query()

    def _tell(self) -> None:
        facts, tensor, ready = self._waiting.popleft()
        if ready:
            ready.synchronize()
        loss = float(tensor)
        if not math.isfinite(loss):
            raise Failed(
                f"the loss is not a number at step {facts.step}",
                "lower learning_rate, or set mixed_precision = bf16; files saved before are whole",
            )
        self._recent.append(loss)
        average = sum(self._recent) / len(self._recent)
        self._bar.set_postfix(loss=f"{average:.4f}", refresh=False)
        self._bar.update()
        self._context.tell(
            "step",
            step=facts.step,
            epoch=facts.epoch,
            loss=loss,
            average=average,
            lr=facts.rates,
            seconds=facts.seconds,
            vram=self._memory(),
        )
        rates = {f"lr/{name}": rate for name, rate in facts.rates.items()}
        self._context.accelerator.log({"loss/current": loss, "loss/average": average, **rates}, step=facts.step)

    def _memory(self) -> int:
        return torch.cuda.max_memory_allocated() if self._context.device.type == "cuda" else 0
