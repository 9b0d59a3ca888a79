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

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.planning.memory import LATENTS, TEXT
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.run_state import RunState
from sd_scripts.training.process.parent_watchdog import TIMED

ROOT = Path(__file__).parents[2]
WARM_UP = 10
"""Steps before the timed ones; with several buckets they meet most of them."""
OF_STEPS = ("compiling", "training")
"""Phases with which the first step begins."""
CACHING = (LATENTS, TEXT)
POLL = 0.2
"""Seconds between two looks at a run."""
GIB = 2**30


@dataclass(kw_only=True)
class Run:
    """Observations of one run: its own events."""

    began: float
    events: list[dict[str, Any]] = field(default_factory=list)

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
        begun = next(n for n, event in enumerate(self.events) if event["kind"] == "started")
        # modules are made ready to compile before it, and the compiler reports again during the first step
        first = next(each for each in self.events[begun:] if each["kind"] == "phase" and each["name"] in OF_STEPS)
        return float(first["time"]) - self.began + self.steps[0]

    @property
    def allocated(self) -> int:
        """Peak bytes of tensors on the GPU outside of caching."""
        return max((used for phase, used in self.phases.items() if phase not in CACHING), default=0)

    @property
    def allocated_caching(self) -> int:
        """Peak bytes of tensors on the GPU while latents and text are cached; 0 if none are."""
        return max((used for phase, used in self.phases.items() if phase in CACHING), default=0)

    @property
    def phases(self) -> dict[str, int]:
        """Peak bytes of tensors on the GPU, by phase."""
        state = RunState()
        for event in self.events:
            state.apply(event)
        return state.vram_of_phases

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
    """A training script that runs below `folder`, and the observations of it."""

    kind: type[Run] = Run
    """What notes it."""

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
        """`launcher`: arguments of Python that come before the script."""
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
            self.run = self.kind(began=time.time())
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
        """Read the run's new events."""
        self.run.events += self._events

    def end(self) -> None:
        """End the run and the processes that it has started."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def console(self) -> str:
        """Return the end of the run's output."""
        return self._console.read_text(errors="replace")[-3000:]

    def watch(self, steps: int, each_look: Callable[[Run], object]) -> Run:
        """Wait until the run has done `steps` steps, end it, and return the observations, like timed_run."""
        try:
            while self.done < steps and not self.ended:
                time.sleep(POLL)
                self.look()
                each_look(self.run)
        finally:
            self.end()
        return self.result(steps)

    def result(self, steps: int) -> Run:
        """Return the observations of an ended run, up to this step. Stopped: it did not come that far."""
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
    each_look: Callable[[Run], object] = lambda run: None,
) -> Run:
    """Run a training script below `folder` until it has done `steps` steps.

    `each_look` is called with the run whenever it is polled; an exception ends the run. Raises Stopped if the run
    ends by itself before that.
    """
    return Running(script, options, folder, flags=flags, environment=environment).watch(steps, each_look)
