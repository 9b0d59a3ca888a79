"""Start queued runs when their GPUs are free, and keep the list of runs up to date."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.runs import process
from sd_scripts.runs.events import Command
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.rebuild import row_values
from sd_scripts.runs.run_state import ENDED, LIVING, RunState, State
from sd_scripts.runs.slurm import job
from sd_scripts.runs.store import SLURM, RunRow, RunStore, gpus_overlap
from sd_scripts.runs.watched import End, WatchedRun, find_run

logger = logging.getLogger("sd_scripts")

UPDATE_EVERY = 1.0
"""Seconds between two updates of the row of a running run."""
STARTING_SECONDS = 30.0
"""After these, a run that this GUI was about to start counts as failed."""
KEPT_RUN_STATES = 16
"""Finished runs whose states stay in memory, the most recently viewed."""
KEPT_REMOVED = 20
"""Runs removed from the queue that can be put back."""

Where = Literal["up", "down", "first", "last"]
MakeWay = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is ready to start: its folder with the settings, and its command."""

    folder: RunFolder
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the GUI's environment; stored in the run folder, so it must not contain secrets."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Added to it, too; never written to disk."""
    name: str = ""
    tab: str = ""
    family: str = ""
    gpus: str = "all"
    """As `gpu_set` returns them, or SLURM; then `argv` is a command line of sbatch."""


@dataclass(frozen=True)
class _Removed:
    """A run removed from the queue, with everything needed to restore it."""

    row: RunRow
    files: Mapping[Path, bytes]
    secrets: Mapping[str, str]


def gpu_set(gpu_ids: str, on_cpu: bool) -> str:
    """Return the GPUs that a run with these gpu_ids needs: "cpu", "all", or indices such as "0,1"."""
    if on_cpu:
        return "cpu"
    ids = {part.strip() for part in gpu_ids.split(",") if part.strip()}
    if not ids or "all" in ids:
        return "all"
    return ",".join(sorted(ids, key=lambda id: (len(id), id)))


class RunQueue:
    """Runs the queue in one thread; all methods are thread-safe. Several GUIs may share a store."""

    def __init__(
        self,
        store: RunStore,
        every: float = 0.5,
        grace: float = process.GRACE,
        why_not: Callable[[RunRow], str] = lambda row: "",
    ):
        self.store = store
        self._why_not = why_not
        """Called before a run starts: returns why it cannot be trained, or an empty string."""
        self._every, self._grace = every, grace
        self._me = process.process_key()
        self._watched: dict[int, WatchedRun] = {}
        self._secrets: dict[int, Mapping[str, str]] = {}
        self._written: dict[int, tuple[float, dict[str, Any]]] = {}
        """When the row of a live run was last written, and its values."""
        self._lock = threading.Lock()
        self._alive: dict[int, RunRow] = {}
        """The rows of live and queued runs at the last tick, in case the list gets damaged."""
        self._removed: dict[int, _Removed] = {}
        """The runs that were removed last."""
        self._damage = store.notice
        self._warned = ""
        self._tools: list[tuple[str, WatchedRun, MakeWay]] = []
        self._waiting_tools: list[tuple[str, Callable[[], WatchedRun | None], MakeWay]] = []
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Find the runs of an earlier GUI, and start the thread."""
        assert self._thread is None
        self._tick()
        self._thread = threading.Thread(target=self._loop, name="run queue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; running processes continue."""
        self._closing.set()
        self._wake.set()
        if self._thread:
            self._thread.join()
        self.store.close()

    def add(self, planned: PlannedRun) -> int:
        """Append a run to the queue. Raises ValueError if its folder cannot be written."""
        described = {name: getattr(planned, name) for name in ("name", "tab", "family", "gpus")}
        launch = {
            **described,  # a lost list is rebuilt from them
            "owner": self._me,
            "created": time.time(),
            "argv": list(planned.argv),
            "environment": dict(planned.environment),
            "secrets": sorted(planned.secrets),
        }
        try:
            write_whole(planned.folder.launch, json.dumps(launch, indent=2) + "\n")
        except OSError as error:
            raise ValueError(f"run folder: '{planned.folder.path}' cannot be written ({error.strerror})") from error
        with self._lock:  # the thread must not meet the row before its secrets are here
            row = self.store.add(planned.folder, owner=self._me, **described)
            self._secrets[row.id] = planned.secrets
        self._wake.set()
        return row.id

    def watch(self, id: int) -> WatchedRun:
        """Return a run with its state; `refresh` updates it. Raises ValueError for an unknown id."""
        row = self._row(id)
        with self._lock:
            watched = self._watched.pop(id, None)
            if watched is None or watched.waiting:  # another GUI may have started it
                watched = _open_run(row, self._grace)
            self._watched[id] = watched  # the newest last
            self._drop_old_states()
            return watched

    def _drop_old_states(self) -> None:
        if len(self._watched) > KEPT_RUN_STATES:
            over = [id for id, watched in self._watched.items() if not watched.alive]
            for id in over[:-KEPT_RUN_STATES]:
                del self._watched[id]

    def move(self, id: int, where: Where) -> None:
        """Reorder the queue. Raises ValueError for a run that is not queued."""
        place = self._waiting(id).place or 1
        self.store.move(id, {"up": place - 1, "down": place + 1, "first": 1, "last": 10**9}[where])
        self._wake.set()

    def remove(self, id: int) -> None:
        """Remove a run and its folder from the queue. Raises ValueError for a run that is not queued."""
        row = self._waiting(id)
        files = _files_of_unused(RunFolder(row.folder))
        if not self.store.forget(id, state="queued"):
            raise ValueError(f"{row.name} has just started: stop it instead")
        _delete_unused(RunFolder(row.folder))
        with self._lock:
            self._watched.pop(id, None)
            self._removed[id] = _Removed(row, files, self._secrets.pop(id, {}))
            for oldest in list(self._removed)[:-KEPT_REMOVED]:
                del self._removed[oldest]

    def put_back(self, id: int) -> None:
        """Restore a removed run at its place in the queue. Raises ValueError if it is no longer known or its folder
        cannot be written."""
        with self._lock:
            removed = self._removed.get(id)
        if removed is None:
            raise ValueError("This run can no longer be restored: load its settings and start it again")
        try:
            for file, content in removed.files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        except OSError as error:
            raise ValueError(f"run folder: '{error.filename}' cannot be written ({error.strerror})") from error
        with self._lock:  # the thread must not meet the row before its secrets are here
            self._removed.pop(id, None)
            self._secrets[id] = removed.secrets
            self.store.restore([removed.row])
        self.store.move(id, removed.row.place or 1)
        self._wake.set()

    def describe(self, id: int, name: str, note: str) -> None:
        """Set the name and note of a run in the list. Raises ValueError for an unknown id."""
        self._row(id)
        self.store.update(id, name=name, note=note)

    def forget(self, id: int) -> None:
        """Remove a finished run from the list; its folder stays. Raises ValueError for any other run."""
        row = self._row(id)
        if row.state not in ENDED or not self.store.forget(id, state=row.state):
            raise ValueError(f"{row.name} has not ended: stop it, or remove it from the queue, first")
        with self._lock:
            self._watched.pop(id, None)

    def ask(self, id: int, kind: Command) -> None:
        """Send `save`, `sample` or `stop` to a run, for the end of its step. Raises ValueError if it cannot."""
        self._living(id).ask(kind)

    def end_now(self, id: int) -> None:
        """Terminate a run without waiting for the step; does not block. Raises ValueError unless it is running."""
        threading.Thread(target=self._living(id).end_now, daemon=True).start()

    def run_on(self, gpus: str) -> RunRow | None:
        """Return a running run that uses one of these GPUs."""
        return next((row for row in self.store.living() if gpus_overlap(gpus, row.gpus)), None)

    def when_free(self, gpus: str, start: Callable[[], WatchedRun | None], make_way: MakeWay = lambda: None) -> None:
        """Start a tool, which is not in the list of runs, once these GPUs are free, ahead of queued runs.

        `start` returns the started process, or None if it was cancelled. `make_way` is passed to `reserve`.
        """
        with self._lock:
            self._waiting_tools.append((gpus, start, make_way))
        self._wake.set()

    def _start_tools(self) -> None:
        with self._lock:
            waiting = list(self._waiting_tools)
        for gpus, start, make_way in waiting:
            if self.run_on(gpus):
                continue
            tool = start()
            with self._lock:
                self._waiting_tools.remove((gpus, start, make_way))
            if tool:
                self.reserve(gpus, tool, make_way)

    def reserve(self, gpus: str, tool: WatchedRun, make_way: MakeWay = lambda: None) -> None:
        """Keep queued runs off these GPUs while the tool, which is not in the list of runs, is running. `make_way` is
        called when a run waits for it: a tool that has nothing to do may end."""
        with self._lock:
            self._tools = [each for each in self._tools if each[1].alive] + [(gpus, tool, make_way)]

    def end_idle_tools(self, gpus: str) -> None:
        """Call `make_way` of the tools on these GPUs, for a tool that needs the memory of those that do nothing."""
        self._is_free(gpus)

    def _is_free(self, gpus: str) -> bool:
        """Return whether no tool uses these GPUs or waits for them."""
        with self._lock:
            taken = [(taken_gpus, make_way) for taken_gpus, tool, make_way in self._tools if tool.alive]
            taken += [(taken_gpus, lambda: None) for taken_gpus, *_ in self._waiting_tools]
        in_the_way = [make_way for taken_gpus, make_way in taken if gpus_overlap(gpus, taken_gpus)]
        for make_way in in_the_way:
            make_way()
        return not in_the_way

    def _row(self, id: int) -> RunRow:
        row = self.store.row(id)
        if row is None:
            raise ValueError(f"run {id} is no longer in the list")
        return row

    def _waiting(self, id: int) -> RunRow:
        row = self._row(id)
        if row.state != "queued":
            raise ValueError(f"{row.name} is not in the queue")
        return row

    def _living(self, id: int) -> WatchedRun:
        row, watched = self._row(id), self.watch(id)
        if row.state == "queued":
            raise ValueError(f"{row.name} has not started: remove it from the queue instead")
        if not watched.alive:
            raise ValueError(f"{row.name} is not running" + ("" if row.state in ENDED else " yet, or no longer"))
        return watched

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._every)
            self._wake.clear()
            if not self._closing.is_set():
                self._tick()

    def _tick(self) -> None:
        """Update the rows of live runs, and start queued runs whose GPUs are free. Errors do not end the thread."""
        try:
            living, queued = self.store.living(), self.store.queued()
            if self.store.notice != self._damage:
                self._restore()
                return
            self._alive = {row.id: row for row in (*living, *queued)}
            for row in living:
                self._follow_safely(row)
            self._start_next()
        except Exception as error:  # such as a full disk: the next tick may succeed
            self._warn(f"The run queue could not be updated: {error}")

    def _restore(self) -> None:
        """After the list was damaged or deleted, add the rows in memory that the run folders did not restore."""
        notice = self.store.notice
        queued = [row for row in self._alive.values() if row.state == "queued"]
        added = self.store.restore(list(self._alive.values()))
        for place, row in enumerate(queued, 1):
            self.store.move(row.id, place)
        if any(row.state == "queued" for row in added):
            self.store.pause(True, notice)  # it may have been paused for a reason
        self._damage = notice

    def _follow_safely(self, row: RunRow) -> None:
        try:
            self._follow(row)
        except ValueError as error:  # the list cannot be written
            self._warn(str(error))
        except Exception as error:  # affects only this run
            self._warn(f"{row.folder}: its events could not be processed ({type(error).__name__}: {error})")
            with contextlib.suppress(ValueError):
                self.store.update(row.id, error=f"its events could not be processed ({error})")

    def _warn(self, text: str) -> None:
        if text != self._warned:  # not at every tick
            self._warned = text
            logger.warning(text)

    def _follow(self, row: RunRow) -> None:
        """Update the row of a live run, and record its end."""
        if row.owner != self._me and process.is_alive(row.owner):
            return  # the GUI that started it has its exit code
        if not self._has_begun(row):
            return
        watched = self.watch(row.id)
        run_state = watched.refresh()
        if watched.run and watched.run.orphaned:
            watched.stop_orphans()
        columns = row_values(run_state)
        if watched.alive or not run_state.over:
            self._write_down(row, columns | {"state": "stopping" if run_state.over else run_state.state})
            return
        if self.store.end(row.id, run_state.state, run_state.ended, **columns):
            if watched.end:
                self._record_end(watched.folder, run_state.state, columns["error"], run_state.ended)
            if not run_state.stop_sent:
                self._pause_after(row, run_state.state)
        self._written.pop(row.id, None)

    def _record_end(self, folder: RunFolder, state: State, error: str, ended: float | None = None) -> None:
        """Write an end that no trainer reported into the run folder, from which a lost list is rebuilt."""
        try:
            folder.record_end(state, error, ended)
        except OSError as problem:
            self._warn(f"{folder.path}: the end of the run cannot be written ({problem.strerror})")

    def _has_begun(self, row: RunRow) -> bool:
        """Return whether a claimed run has a process; queue it again if its GUI died before starting one."""
        folder = RunFolder(row.folder)
        if row.state != "starting" or row.process or folder.process.exists():
            return True
        with self._lock:
            watched = self._watched.get(row.id)
        if watched and watched.run:
            return True
        if row.owner == self._me:
            if time.time() - (row.started or 0.0) > STARTING_SECONDS:
                self._fail(row, "it could not be started, and the reason could not be recorded")
            return False
        if folder.console.exists() or (row.gpus == SLURM and job.adopt(folder)):
            return True  # it may have started, and must not start twice
        self.store.update(row.id, state="queued", started=None)
        return False

    def _fail(self, row: RunRow, why: str) -> bool:
        """Record the end of a run that never began; return whether this call did."""
        ended = self.store.end(row.id, "failed", error=why)
        if ended:
            self._record_end(RunFolder(row.folder), "failed", why)
        return ended

    def _write_down(self, row: RunRow, columns: dict[str, Any]) -> None:
        when, before = self._written.get(row.id, (0.0, {}))
        changed = columns != before
        if changed and (columns["state"] != row.state or time.monotonic() - when >= UPDATE_EVERY):
            self.store.update(row.id, **columns)
            self._written[row.id] = time.monotonic(), columns

    def _pause_after(self, row: RunRow, state: State) -> None:
        if state in ("failed", "lost") and not self.store.after_failure and not self.store.paused:
            self.store.pause(True, f"{row.name} failed, and the queue is set to pause after a failed run")

    def _start_next(self) -> None:
        self._start_tools()
        passing: set[int] = set()
        for row in self.store.queued():
            if self.store.notice != self._damage:  # the live runs are missing from the list: start nothing next to them
                return
            if row.owner != self._me and process.is_alive(row.owner):
                continue  # the GUI that queued it has its environment and its secrets
            with self._lock:
                mine = self._secrets.get(row.id)
            launch = read_json(RunFolder(row.folder).launch)
            if missing := _missing(launch, mine or {}):
                passing.add(row.id)
                if row.error != missing:
                    self.store.update(row.id, error=missing)
            elif self._is_free(row.gpus) and self.store.claim(row.id, self._me, passing):
                self._start(row, launch, mine or {})

    def _start(self, row: RunRow, launch: Any, secrets: Mapping[str, str]) -> None:
        folder = RunFolder(row.folder)
        try:
            if why := self._check(row):
                raise ValueError(why)
            run = self._launch(row, folder, *_command(launch, secrets))
        except ValueError as error:
            if self._fail(row, str(error)):
                self._pause_after(row, "failed")
            return
        self.store.update(row.id, process=run.key)

    def _launch(self, row: RunRow, folder: RunFolder, argv: list[str], environment: dict[str, str]) -> process.LiveRun:
        """Start a run where it is to run: on this machine, or as a Slurm job."""
        if row.gpus == SLURM:
            return job.submit(argv, folder)
        with self._lock:  # so that no other thread finds the process in the folder and watches it twice
            run = process.start(argv, environment, folder)
            self._watched[row.id] = WatchedRun(folder, run, grace=self._grace)
            self._secrets.pop(row.id, None)
        return run

    def _check(self, row: RunRow) -> str:
        """Return why a run cannot be trained; an error in the check itself does not block the run."""
        try:
            return self._why_not(row)
        except ValueError as error:
            return str(error)
        except Exception as error:
            self._warn(f"{row.name} could not be checked before it started ({type(error).__name__}: {error})")
            return ""


def _open_run(row: RunRow, grace: float) -> WatchedRun:
    """Return a run of the list, with its processes if they are alive."""
    folder = RunFolder(row.folder)
    if row.state == "queued":
        return WatchedRun(folder, None, waiting=True, run_state=RunState(state="queued"))
    if row.state in LIVING:
        run = find_run(folder, row.process)
        waiting = run is None and row.state == "starting" and process.is_alive(row.owner)
        return WatchedRun(folder, run, waiting=waiting, grace=grace)
    return WatchedRun(folder, None, End(row.state, row.error, row.ended))


def _missing(launch: Any, mine: Mapping[str, str]) -> str:
    """Return which secrets a queued run lacks: only the GUI that queued it has them, in memory."""
    names = launch.get("secrets", []) if isinstance(launch, dict) else []
    missing = [name for name in names if name not in mine]
    if not missing:
        return ""
    return f"waits for {' and '.join(missing)}, which is never saved to disk: load its settings and start it again"


def _command(launch: Any, secrets: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line, and the additions to the environment."""
    try:
        return [str(argument) for argument in launch["argv"]], {**launch["environment"], **secrets}
    except (KeyError, TypeError) as error:
        raise ValueError(
            "its folder or launch.json was deleted or damaged while it was queued; start it again"
        ) from error


def _files_of_unused(folder: RunFolder) -> dict[Path, bytes]:
    """Return the files that `_delete_unused` deletes, with their contents."""
    found = {}
    for file in (folder.config, folder.launch, folder.console):
        with contextlib.suppress(OSError):
            found[file] = file.read_bytes()
    return found


def _delete_unused(folder: RunFolder) -> None:
    """Delete the folder of a run that never started; keep it if it contains other files."""
    if folder.events_file.exists() or folder.process.exists():
        return
    with contextlib.suppress(OSError):
        for file in (folder.config, folder.launch, folder.console):
            file.unlink(missing_ok=True)
        folder.path.rmdir()
