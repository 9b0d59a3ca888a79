"""What the events of a run add up to: where it is, how fast, how long still, and what it made."""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["starting", "running", "stopping", "stopped", "finished", "failed", "lost"]
ENDED: tuple[State, ...] = ("stopped", "finished", "failed", "lost")

WARM_UP_STEPS = 3
"""Steps at the beginning that the speed leaves out: they allocate, compile and tune."""
SLOW = 4.0
"""A step this many times slower than the median compiled something new; the speed leaves it out too."""


class Curve:
    """A curve of at most `most` points: when it is full, neighbours are averaged, so a point stands for more steps."""

    def __init__(self, most: int = 600):
        self.points: list[tuple[float, float]] = []
        self._most, self._stride = most, 1
        self._waiting: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        self._waiting.append((x, y))
        if len(self._waiting) < self._stride:
            return
        self.points.append(_mean(self._waiting))
        self._waiting = []
        if len(self.points) >= self._most:
            self.points = [_mean(self.points[i : i + 2]) for i in range(0, len(self.points), 2)]
            self._stride *= 2

    def smooth(self) -> list[tuple[float, float]]:
        """The running mean, over about a tenth of the curve."""
        keep = 1 - 2 / (min(max(len(self.points) / 10, 6), 60) + 1)
        total = weight = 0.0
        drawn = []
        for x, y in self.points:
            total, weight = keep * total + y, keep * weight + 1
            drawn.append((x, total / weight))
        return drawn


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


@dataclass(frozen=True)
class Made:
    """A file that the run wrote: a sample picture, or a checkpoint."""

    path: Path
    step: int
    note: str = ""
    """The prompt of a sample."""
    bytes: int = 0


@dataclass
class RunStory:
    """Fold events in with `tell`; read the rest."""

    state: State = "starting"
    phase: str = ""
    done: int = 0
    total: int = 0
    """Progress of the phase; of the training itself see `step` and `max_steps`."""
    step: int = 0
    max_steps: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    average: float | None = None
    learning_rates: dict[str, float] = field(default_factory=dict)
    vram: int = 0
    started: float | None = None
    ended: float | None = None
    losses: Curve = field(default_factory=Curve)
    validation: Curve = field(default_factory=Curve)
    samples: list[Made] = field(default_factory=list)
    saved: list[Made] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    compile: dict[str, Any] = field(default_factory=dict)
    compile_lines: list[str] = field(default_factory=list)
    failure: dict[str, str] = field(default_factory=dict)
    """error: one sentence; remedy; details: the full text."""
    facts: dict[str, Any] = field(default_factory=dict)
    """All that `started` said."""
    told: int = 0
    """How many events there were: a view that has seen as many is fresh."""
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    _steps_here: int = 0

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def seconds_per_step(self) -> float | None:
        """The mean of the recent steps, without warm-up and without those that compiled."""
        if not self._seconds:
            return None
        usual = statistics.median(self._seconds)
        return statistics.fmean(s for s in self._seconds if s <= SLOW * usual)

    @property
    def seconds_left(self) -> float | None:
        pace = self.seconds_per_step
        return None if pace is None or self.over or not self.max_steps else pace * (self.max_steps - self.step)

    @property
    def fraction(self) -> float:
        """Of the training that is done, 0 to 1."""
        return min(self.step / self.max_steps, 1.0) if self.max_steps else 0.0

    def tell(self, event: dict[str, Any]) -> None:
        self.told += 1
        if self.state == "starting":  # it speaks, so it runs; `started` comes once the data is known
            self.state = "running"
        if self.started is None:
            self.started = event.get("time")
        teller = getattr(self, f"_on_{event.get('kind')}", None)
        if teller:
            teller(event)

    def lost(self, why: str, details: str = "") -> None:
        """The process is gone and said nothing of it."""
        if not self.over:
            self.state, self.failure = "lost", {"error": why, "details": details}
            self.told += 1

    def asked_to_stop(self) -> None:
        if not self.over and self.state != "stopping":
            self.state = "stopping"
            self.told += 1

    def _on_started(self, event: dict[str, Any]) -> None:
        self.facts, self.step = event, event.get("step") or 0
        self.max_steps, self.epochs = event.get("max_steps") or 0, event.get("epochs") or 0

    def _on_phase(self, event: dict[str, Any]) -> None:
        self.phase, self.done, self.total = event["name"], event.get("done") or 0, event.get("total") or 0

    def _on_step(self, event: dict[str, Any]) -> None:
        self.phase = "training"
        self.step, self.epoch = event["step"], event.get("epoch", self.epoch)
        self.loss, self.average = event.get("loss"), event.get("average")
        self.learning_rates = event.get("lr") or self.learning_rates
        self.vram = max(self.vram, event.get("vram") or 0)
        if self.loss is not None and math.isfinite(self.loss):
            self.losses.add(self.step, self.loss)
        self._steps_here += 1
        if self._steps_here > WARM_UP_STEPS and event.get("seconds"):
            self._seconds.append(event["seconds"])

    def _on_epoch(self, event: dict[str, Any]) -> None:
        self.epoch = event.get("epoch", self.epoch)

    def _on_validation(self, event: dict[str, Any]) -> None:
        if math.isfinite(event["loss"]):
            self.validation.add(event["step"], event["loss"])

    def _on_sample(self, event: dict[str, Any]) -> None:
        self.samples.append(Made(Path(event["path"]), event.get("step", self.step), event.get("prompt", "")))

    def _on_saved(self, event: dict[str, Any]) -> None:
        self.saved.append(Made(Path(event["path"]), event.get("step", self.step), bytes=event.get("bytes") or 0))

    def _on_compile(self, event: dict[str, Any]) -> None:
        self.compile.update({k: v for k, v in event.items() if k not in ("time", "kind", "text")})
        if event.get("text"):
            self.compile_lines.append(event["text"])

    def _on_warning(self, event: dict[str, Any]) -> None:
        option, text = event.get("option"), event["text"]
        self.warnings.append(text if not option or text.startswith(option) else f"{option}: {text}")

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self.state, self.ended = "stopped", event.get("time")

    def _on_failed(self, event: dict[str, Any]) -> None:
        self.state, self.ended = "failed", event.get("time")
        self.failure = {k: str(event[k]) for k in ("error", "remedy", "details") if event.get(k)}

    def _on_finished(self, event: dict[str, Any]) -> None:
        self.state, self.ended = "finished", event.get("time")
        self.step = event.get("step", self.step)
