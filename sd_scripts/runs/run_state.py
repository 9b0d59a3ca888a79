"""Fold a run's events into its state: progress, speed, time left, and output files."""

import contextlib
import math
import os
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sd_scripts.formats.words import some
from sd_scripts.runs.events import END
from sd_scripts.runs.outputs import Fingerprint, find_saved, fingerprint
from sd_scripts.runs.series import Series

State = Literal["queued", "starting", "running", "stopping", "stopped", "finished", "failed", "lost"]
LIVING: tuple[State, ...] = ("starting", "running", "stopping")
ENDED: tuple[State, ...] = ("stopped", "finished", "failed", "lost")

WARM_UP_STEPS = 3
"""First steps, which the speed excludes: they allocate, compile and autotune."""
LATER = 30.0
"""Seconds of clock skew tolerated between an event and its file's mtime."""
SLOW = 4.0
"""A step this many times slower than the median recompiled something; the speed excludes it too."""


@dataclass(frozen=True)
class OutputFile:
    """A file that the run wrote: a sample or a checkpoint."""

    path: Path
    step: int
    note: str = ""
    """The prompt of a sample."""
    bytes: int = 0
    mtime_ns: int = 0
    number: int | None = None
    """Index of a sample's prompt, from 0."""
    seed: int | None = None
    media: str = "image"
    """Kind of a sample: "image" or "clip"."""
    width: int = 0
    height: int = 0
    frames: int = 1
    fps: float = 0
    """Frames per second of a clip."""

    time: float | None = None
    """When the run reported it."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The identity for outputs.find_saved; None if the run did not record it."""
        return Fingerprint(self.bytes, self.mtime_ns) if self.mtime_ns else None

    def find(self) -> Path | None:
        """Return the current path of a saved file or state; None if another run overwrote it and no renamed copy
        exists. A path without a file is returned unchanged."""
        found = find_saved(self.path, self.fingerprint)
        if found is None:
            return None if os.path.lexists(self.path) else self.path
        return None if self.fingerprint is None and self._is_replaced() else found

    def _is_replaced(self) -> bool:
        """Return whether the file at the path is not the one that an event without a fingerprint reported."""
        now = fingerprint(self.path)
        if now is None:
            return False
        is_later = self.time is not None and now.mtime_ns / 1e9 > self.time + LATER
        return is_later or self.bytes not in (0, now.bytes)


MOST_COMPILED = 100
"""Graphs that are listed; the page gets the whole list at each change."""
MOST_MARKS = 200
MOST_REASONS = 3
"""Reasons for recompiles that a mark names."""


MarkKind = Literal["compiled", "recompiled", "graph break", "differs"]
"""`differs`: compile_check_every found that compiled and eager results differ too much."""


@dataclass(frozen=True)
class Mark:
    """A compiler event at a step, for the chart."""

    step: int
    kind: MarkKind
    lines: tuple[str, ...]


@dataclass
class SentCommand:
    """A command that a user sent to the run."""

    kind: str
    id: str = ""
    time: float = 0.0
    handled_step: int | None = None
    """The step at which the trainer handled it; None while it is pending."""

    @property
    def ends_run(self) -> bool:
        return self.kind in ("stop", END)


@dataclass
class CompileChecks:
    """Steps that also ran eagerly (compile_check_every), and how far the compiled results were from the eager ones."""

    count: int = 0
    last_step: int = 0
    largest_loss: float = 0.0
    """Relative differences; see Difference in training/execution/checked.py."""
    largest_gradient: float = 0.0
    exceeded: list[int] = field(default_factory=list)
    """The first steps whose difference was above the bound, or not finite."""


@dataclass
class RunState:
    """The state of a run; `apply` folds an event in."""

    state: State = "starting"
    phase: str = ""
    done: int = 0
    total: int = 0
    """Progress of the phase; for the training itself see `step` and `max_steps`."""
    phase_note: str = ""
    """The phase's note, such as "12 graphs so far"."""
    phase_since: float | None = None
    """When the phase began."""
    step: int = 0
    max_steps: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    average: float | None = None
    learning_rates: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Series] = field(default_factory=dict)
    """The learning rate curve of each parameter group."""
    gpu: dict[str, Series] = field(default_factory=dict)
    """Readings of the GPU, in percent and degrees Celsius, by the name of what was measured."""
    vram: int = 0
    """Peak use in bytes."""
    vram_of_phases: dict[str, int] = field(default_factory=dict)
    """The peak of each phase."""
    vram_now: int = 0
    """The peak of the current phase."""
    ram: int = 0
    """Memory use of the process in bytes."""
    started: float | None = None
    ended: float | None = None
    losses: Series = field(default_factory=Series)
    validation: Series = field(default_factory=Series)
    seconds: Series = field(default_factory=Series)
    """The time of each step."""
    samples: list[OutputFile] = field(default_factory=list)
    saved: list[OutputFile] = field(default_factory=list)
    uploaded: dict[Path, str] = field(default_factory=dict)
    """Address of each saved file or state that was uploaded."""
    warnings: list[str] = field(default_factory=list)
    compile: dict[str, Any] = field(default_factory=dict)
    compile_lines: list[str] = field(default_factory=list)
    compiled: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(step, {block, seconds, why}) of each compiled graph, MOST_COMPILED at most."""
    breaks: list[str] = field(default_factory=list)
    """Each file:line where a graph broke, MOST_COMPILED at most."""
    marks: list[Mark] = field(default_factory=list)
    """Compiler events along the steps, MOST_MARKS at most."""
    checks: CompileChecks = field(default_factory=CompileChecks)
    failure: dict[str, str] = field(default_factory=dict)
    """Keys: error (one sentence), remedy, details (the full text)."""
    commands: list[SentCommand] = field(default_factory=list)
    """Commands sent to it, oldest first."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The payload of the `started` event."""
    scheduler: str = ""
    """The scheduler's report on a run that it starts."""
    waits: bool = False
    """Whether the scheduler has yet to start it, for the first time or again."""
    event_count: int = 0
    """Number of changes so far: a view that has seen this many is up to date."""
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    _steps_here: int = 0
    _heard: dict[str, int] = field(default_factory=dict)
    _earlier_end: tuple[State, float | None, dict[str, str]] | None = None
    """State, time and failure of a run that ended, and that the scheduler will start again."""
    _listens_from: float = 0.0
    """Time until which commands were for an earlier run in this folder."""

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def doing(self) -> str:
        """The current activity of an unfinished run, in words."""
        words = {"starting": "starting Python and PyTorch", "stopping": "stopping"}
        return words.get(self.state, self.phase)

    @property
    def seconds_per_step(self) -> float | None:
        """The mean of the recent steps, without warm-up and recompiling steps."""
        recent = list(self._seconds)  # a snapshot: another thread may append
        if not recent:
            return None
        usual = statistics.median(recent)
        return statistics.fmean(s for s in recent if s <= SLOW * usual)

    @property
    def seconds_left(self) -> float | None:
        pace = self.seconds_per_step
        return None if pace is None or self.over or not self.max_steps else pace * (self.max_steps - self.step)

    @property
    def images_per_second(self) -> float | None:
        pace, images = self.seconds_per_step, self.facts.get("images_per_step")
        return images / pace if pace and isinstance(images, int | float) else None

    @property
    def stop_sent(self) -> SentCommand | None:
        """The first command that was to end the run, so that its end is not a failure."""
        return next((sent for sent in self.commands if sent.ends_run), None)

    @property
    def pending_commands(self) -> list[str]:
        """Kinds of the commands that the trainer has not handled yet."""
        return (
            [] if self.over else list(dict.fromkeys(sent.kind for sent in self.commands if sent.handled_step is None))
        )

    @property
    def fraction(self) -> float:
        """The completed fraction of the training, 0 to 1."""
        return min(self.step / self.max_steps, 1.0) if self.max_steps else 0.0

    def apply(self, event: dict[str, Any]) -> None:
        """Fold one event in."""
        self.event_count += 1
        self._earlier_end = None
        kind = event.get("kind")
        if self.state in ("queued", "starting"):  # any event means that it runs; `started` comes once the data is known
            self.state = "running"
        if self.started is None:
            self.started = event.get("time")
        handler = getattr(self, f"_on_{kind}", None)
        # a malformed event must not affect the others
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            if listens_from := event.get("listens_from"):
                self._begin_in_used_folder(float(listens_from))
            if handler:
                handler(event)

    def mark_ended(self, state: State, why: str = "", ended: float | None = None) -> None:
        """Record the end of a run that did not report it itself."""
        if self.over:
            return
        self.event_count += 1
        if self._earlier_end:  # it was not started again, or the scheduler's report was old
            self.state, self.ended, self.failure = self._earlier_end
            return
        self.state = state
        self.ended = ended or self.ended
        if why:
            self.failure = {"error": why}

    def note_scheduler(self, text: str, waits: bool) -> None:
        """Record the scheduler's report; a run that it will start again has not ended."""
        if (text, waits) == (self.scheduler, self.waits):
            return
        self.scheduler, self.waits = text, waits
        self.event_count += 1
        if waits and self.over:
            self._earlier_end = self.state, self.ended, self.failure
            self.state, self.ended, self.failure = "starting", None, {}

    def warn(self, text: str) -> None:
        """Add a warning about reading the run itself."""
        self.warnings.append(text)
        self.event_count += 1

    def add_command(self, command: dict[str, Any]) -> None:
        """Record a command that a user sent: one line of the commands file."""
        sent = SentCommand(str(command.get("kind")), str(command.get("id") or ""), command.get("time") or 0.0)
        if self._is_of_an_earlier_run(sent):
            return
        sent.handled_step = self._heard.get(sent.id)
        self.commands.append(sent)
        self.event_count += 1
        if sent.ends_run and not self.over:
            self.state = "stopping"

    def _is_of_an_earlier_run(self, sent: SentCommand) -> bool:
        return bool(self._listens_from) and sent.time <= self._listens_from

    def _begin_in_used_folder(self, listens_from: float) -> None:
        """Another run starts in this folder: it does not receive commands to the previous one."""
        self._listens_from = listens_from
        self.commands = [sent for sent in self.commands if not self._is_of_an_earlier_run(sent)]
        if self.state == "stopping" and not self.stop_sent:
            self.state = "running"

    def _on_heard(self, event: dict[str, Any]) -> None:
        for id in event["ids"]:
            self._heard[id] = event.get("step", self.step)
        for sent in self.commands:
            sent.handled_step = self._heard.get(sent.id, sent.handled_step)

    def _on_started(self, event: dict[str, Any]) -> None:
        if self.over:  # resumed in the same folder
            self.state, self.ended, self.failure = "running", None, {}
        self.facts, self.step = event, event.get("step") or 0
        self.max_steps, self.epochs = event.get("max_steps") or 0, event.get("epochs") or 0

    def _on_phase(self, event: dict[str, Any]) -> None:
        if used := int(event.get("vram") or 0):
            self._used(self.phase, used)
        self._enter(event["name"], event)
        self.done, self.total = event.get("done") or 0, event.get("total") or 0
        self.phase_note = str(event.get("note") or "")

    def _enter(self, phase: str, event: dict[str, Any]) -> None:
        if phase != self.phase:
            self.phase, self.phase_since, self.phase_note = phase, event.get("time"), ""

    def _used(self, phase: str, bytes: int) -> None:
        self.vram = max(self.vram, bytes)
        self.vram_of_phases[phase] = max(self.vram_of_phases.get(phase, 0), bytes)

    def _on_step(self, event: dict[str, Any]) -> None:
        self._enter("training", event)
        self.step, self.epoch = event["step"], event.get("epoch", self.epoch)
        self.loss, self.average = event.get("loss"), event.get("average")
        if used := event.get("vram"):
            self.vram_now = used
            self._used(self.phase, used)
        self.ram = event.get("ram") or self.ram
        if self.loss is not None and math.isfinite(self.loss):
            self.losses.add(self.step, self.loss)
        if rates := event.get("lr"):
            self.learning_rates = rates
            for group, rate in rates.items():
                self.rates.setdefault(group, Series()).add(self.step, rate)
        for name, value in (event.get("gpu") or {}).items():
            self.gpu.setdefault(name, Series()).add(self.step, value)
        if event.get("seconds"):
            self.seconds.add(self.step, event["seconds"])
        self._steps_here += 1
        if self._steps_here > WARM_UP_STEPS and event.get("seconds"):
            self._seconds.append(event["seconds"])

    def _on_epoch(self, event: dict[str, Any]) -> None:
        self.epoch = event.get("epoch", self.epoch)

    def _on_validation(self, event: dict[str, Any]) -> None:
        if math.isfinite(event["loss"]):
            self.validation.add(event["step"], event["loss"])

    def _on_sample(self, event: dict[str, Any]) -> None:
        self.samples.append(
            OutputFile(
                Path(event["path"]),
                event.get("step", self.step),
                event.get("prompt", ""),
                number=event.get("number"),
                seed=event.get("seed"),
                media=event.get("media") or "image",
                width=event.get("width") or 0,
                height=event.get("height") or 0,
                frames=event.get("frames") or 1,
                fps=event.get("fps") or 0,
            )
        )

    def _on_saved(self, event: dict[str, Any]) -> None:
        size, mtime = int(event.get("bytes") or 0), int(event.get("mtime_ns") or 0)
        step, time = event.get("step", self.step), event.get("time")
        self.saved.append(OutputFile(Path(event["path"]), step, bytes=size, mtime_ns=mtime, time=time))

    def _on_uploaded(self, event: dict[str, Any]) -> None:
        self.uploaded[Path(event["path"])] = event.get("url") or ""

    def _on_compile(self, event: dict[str, Any]) -> None:
        self.compile.update({k: v for k, v in event.items() if k not in ("time", "kind", "text", "compiled", "broke")})
        step, text = event.get("step", 0), event.get("text")
        graphs = [graph for graph in event.get("compiled") or [] if isinstance(graph, dict)]
        broke = [place for place in event.get("broke") or [] if isinstance(place, str)]
        self.compiled += [(step, graph) for graph in graphs][: MOST_COMPILED - len(self.compiled)]
        broke = [place for place in dict.fromkeys(broke) if place not in self.breaks]
        self.breaks += broke[: MOST_COMPILED - len(self.breaks)]
        if text:
            self.compile_lines.append(text)
            self._mark(step, text, list(dict.fromkeys(graph["why"] for graph in graphs if graph.get("why"))), broke)

    def _mark(self, step: int, text: str, reasons: list[str], broke: list[str]) -> None:
        """Mark a step on the chart; graphs compiled before the first step are marked there."""
        lines = (text, *reasons[:MOST_REASONS], *([f"graph break at {some(broke)}"] if broke else []))
        kind: MarkKind = "graph break" if broke else "recompiled" if reasons else "compiled"
        if len(self.marks) < MOST_MARKS:
            self.marks.append(Mark(max(step, 1), kind, lines))

    def _on_compile_check(self, event: dict[str, Any]) -> None:
        step, checks = event["step"], self.checks
        loss, gradient = event.get("loss_difference"), event.get("gradient_difference")
        checks.count, checks.last_step = checks.count + 1, step
        checks.largest_loss = max(checks.largest_loss, loss or 0.0)
        checks.largest_gradient = max(checks.largest_gradient, gradient or 0.0)
        if not event.get("exceeds"):
            return
        checks.exceeded = [*checks.exceeded, step][:MOST_REASONS]
        text = "compiled and eager results differ"
        if loss is not None and gradient is not None:
            text = f"compiled and eager results differ: loss by {loss:.2g}, gradients by {gradient:.2g} of the largest"
        if len(self.marks) < MOST_MARKS:
            self.marks.append(Mark(step, "differs", (text,)))

    def _on_warning(self, event: dict[str, Any]) -> None:
        option, text = event.get("option"), event["text"]
        self.warnings.append(text if not option or text.startswith(option) else f"{option}: {text}")

    def _on_stopped(self, event: dict[str, Any]) -> None:
        self.state, self.ended = "stopped", event.get("time")

    def _on_failed(self, event: dict[str, Any]) -> None:
        self._end("failed", event)

    def _on_ended(self, event: dict[str, Any]) -> None:
        if event["state"] in ENDED:
            self._end(event["state"], event)

    def _end(self, state: State, event: dict[str, Any]) -> None:
        self.state, self.ended = state, event.get("time")
        self.failure = {k: str(event[k]) for k in ("error", "remedy", "details") if event.get(k)}

    def _on_finished(self, event: dict[str, Any]) -> None:
        self.state, self.ended = "finished", event.get("time")
        self.step = event.get("step", self.step)
