"""Watch a run on behalf of all viewers, whether started here, found again, or over."""

import threading
import time
from dataclasses import dataclass, field, replace

from sd_scripts.runs import process
from sd_scripts.runs.events import END, Command, EventTail, Kill
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.process import GRACE, LiveRun
from sd_scripts.runs.run_state import RunState, State
from sd_scripts.runs.slurm import job

FRESH = 0.2
"""Seconds before the files are read again, however many browsers poll."""


@dataclass(frozen=True)
class End:
    """The end of a run that did not report it itself."""

    state: State
    why: str = ""
    ended: float | None = None


def find_run(folder: RunFolder, process_key: str = "") -> LiveRun | None:
    """Return a run that is alive on this machine, or the Slurm job of one; `process_key` is its key, if known."""
    return job.find(folder, process_key) or process.find(folder, process_key)


def unreported_end(folder: RunFolder, run_state: RunState, run: LiveRun | None = None) -> End:
    """Return why the process of a run is gone, as far as known, for a run without a final event; `run` if it was
    watched."""
    ended = time.time() if run else _last_activity(folder)
    if any(sent.kind == END for sent in run_state.commands):
        return End("stopped", _ended_at_once(run_state), ended)
    if run and run.reported_end:
        return End(*run.reported_end, ended)
    return End("lost", _explain(folder, run_state, run.exit_code if run else None), ended)


def _last_activity(folder: RunFolder) -> float | None:
    """Return when a run that ended unobserved wrote its last line."""
    written = [path.stat().st_mtime for path in (folder.events_file, folder.console) if path.is_file()]
    return max(written, default=None)


def _ended_at_once(run_state: RunState) -> str:
    step = f" at step {run_state.step}" if run_state.step else ""
    saved = "Its earlier saves still exist." if run_state.saved else "It had not saved anything yet."
    return f"You stopped this run immediately{step}, without saving. {saved}"


def _explain(folder: RunFolder, run_state: RunState, exit_code: int | None) -> str:
    if exit_code == 0:
        return "The run exited normally, but its events are gone: was its folder deleted? Saved files may still exist"
    if run_state.state == "stopping":
        return "The run was ended before it could save; earlier saves still exist"
    if not folder.path.is_dir():
        return "The training process and the run folder are gone; files saved elsewhere still exist"
    if exit_code is None:
        return "The training process disappeared without reporting an error"
    if exit_code < 0 or exit_code == 137:
        return "The training process was killed by the system, often because memory ran out"
    return f"The training process ended with exit code {exit_code}; see its last lines under Details"


@dataclass
class WatchedRun:
    """A run with its process, if alive, and its state so far."""

    folder: RunFolder
    run: LiveRun | None
    end: End | None = None
    """According to the list of runs or the process itself, for a run without a final event."""
    run_state: RunState = field(default_factory=RunState)
    waiting: bool = False
    """Whether it has no process yet."""
    grace: float = GRACE
    """Seconds without activity after which a run that was asked to stop is terminated."""
    _tail: EventTail = field(init=False, repr=False)
    _commands: EventTail = field(init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _read: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self._tail, self._commands = self.folder.events(), self.folder.commands()

    def refresh(self) -> RunState:
        """Read the newest events and return the state. A process that is gone without a final event is lost."""
        with self._lock:
            fresh = self._read and time.monotonic() - self._read < FRESH
            if fresh or self.waiting:
                return self.run_state
            alive = self.alive  # checked before reading: a process writes its last events before it exits
            if self._read and self.run_state.over and not alive:
                return self.run_state
            trouble = self._read_files()
            self._read = time.monotonic()
            if self.run and alive:
                self.run_state.note_scheduler(self.run.about, self.run.waits)
            if not alive and not self.run_state.over and (self.run is None or self.run.settled):
                self._mark_ended(trouble)
            return self.run_state

    def _mark_ended(self, trouble: str) -> None:
        if self.end is None:
            end = unreported_end(self.folder, self.run_state, self.run)
            self.end = replace(end, why=trouble) if trouble and end.state == "lost" else end
        self.run_state.mark_ended(self.end.state, self.end.why, self.end.ended)
        self._add_last_lines()

    def _add_last_lines(self) -> None:
        """Show the last output of a run that did not report why it ended."""
        tail = self.folder.console_tail()
        if tail and self.run_state.failure and self.run_state.state != "stopped":
            self.run_state.failure.setdefault("details", tail)

    def _read_files(self) -> str:
        """Read new events and commands; return a sentence if they cannot be read."""
        if self.run and not self.folder.path.is_dir():
            self.warn_once("the run folder was deleted, so its progress can no longer be shown")
        try:
            for event in self._tail:
                self.run_state.apply(event)
                if event.get("kind") == "ended":  # without the output, which may name values that no event may contain
                    self._add_last_lines()
            for command in self._commands:
                self.run_state.add_command(command)
        except OSError as error:
            return self.warn_once(f"the run's events cannot be read ({error.strerror}: {error.filename})")
        if self.run and self.run_state.state == "stopping":
            self.run.end_after_grace(self.grace)
        return ""

    def warn_once(self, text: str) -> str:
        if text not in self.run_state.warnings:
            self.run_state.warn(text)
        return text

    @property
    def alive(self) -> bool:
        return self.run is not None and self.run.alive

    def ask(self, kind: Command) -> None:
        """Send a command for the end of the current step. Raises ValueError if it cannot be written."""
        if kind == "stop" and self.run and self.run.waits:  # it would first load the model
            self.end_now()
            return
        try:
            self._send(kind)
        except OSError as error:
            raise ValueError(
                f"{kind}: the command cannot be written to '{self.folder.path}' ({error.strerror}); "
                "free some space there, or stop the run now"
            ) from error

    def stop(self) -> None:
        if self.run:
            self.ask("stop")

    def stop_orphans(self) -> None:
        """Have the processes of a run save and exit whose launcher, which would end them, is gone."""
        self.warn_once("the main process of the run is gone; the others save and stop")
        if self.run and not self.run.ends_after_grace:
            self._send_or_remember("stop")
            self.run.end_after_grace(self.grace)

    def end_now(self) -> None:
        """End the processes without waiting for the step."""
        if self.run:
            self._send_or_remember(END)
            self.run.terminate()

    def _send(self, kind: Command | Kill) -> None:
        """Write a command into the run folder, which is the memory of all that was sent, and read it from there."""
        self.folder.command(kind)
        with self._lock:
            self._read_files()

    def _send_or_remember(self, kind: Command | Kill) -> None:
        """Send a command; with a full disk, a later GUI cannot know that it was sent."""
        try:
            self._send(kind)
        except OSError:
            self.run_state.add_command({"kind": kind})
