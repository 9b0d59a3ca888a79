"""The queue: starts runs when their cards are free, one after another, and keeps the list of runs true."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sd_scripts.runs import process
from sd_scripts.runs.events import Command
from sd_scripts.runs.folder import RunFolder, read_json, write_whole
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.runs.process import RunningRun
from sd_scripts.runs.run_state import ENDED, LIVING, RunState, State
from sd_scripts.runs.store import RunRow, RunStore, gpus_overlap
from sd_scripts.runs.watched import End, WatchedRun

logger = logging.getLogger("sd_scripts")

UPDATE_EVERY = 1.0
"""Seconds between two updates of the row of a running run."""
STARTING_SECONDS = 30.0
"""After which a run that this GUI was about to start will not come any more."""
KEPT_RUN_STATES = 16
"""Runs that are over and were looked at last: their stories stay in memory."""
KEPT_REMOVED = 20
"""Runs removed from the queue that can be put back."""

Where = Literal["up", "down", "first", "last"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is ready to start: its folder with the settings in it, and the command."""

    folder: RunFolder
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the GUI; stands in the folder to be read, so no secrets."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Added to it too; never written anywhere."""
    name: str = ""
    tab: str = ""
    family: str = ""
    gpus: str = "all"


@dataclass(frozen=True)
class _Removed:
    """A run that was taken out of the queue, with all that is needed to put it back."""

    row: RunRow
    files: Mapping[Path, bytes]
    secrets: Mapping[str, str]


def gpu_set(gpu_ids: str, on_cpu: bool) -> str:
    """The cards that a run with these gpu_ids needs: "cpu", "all", or numbers such as "0,1"."""
    if on_cpu:
        return "cpu"
    ids = {part.strip() for part in gpu_ids.split(",") if part.strip()}
    if not ids or "all" in ids:
        return "all"
    return ",".join(sorted(ids, key=lambda id: (len(id), id)))


class RunQueue:
    """One thread looks after all runs; every method may be called from any thread. Several GUIs may share a store."""

    def __init__(
        self,
        store: RunStore,
        every: float = 0.5,
        grace: float = process.GRACE,
        why_not: Callable[[RunRow], str] = lambda row: "",
    ):
        self.store = store
        self._why_not = why_not
        """Asked when the turn of a run comes: why it cannot be trained, or nothing."""
        self._every, self._grace = every, grace
        self._me = process.process_key()
        self._watched: dict[int, WatchedRun] = {}
        self._secrets: dict[int, Mapping[str, str]] = {}
        self._written: dict[int, tuple[float, dict[str, Any]]] = {}
        """When the row of a living run was last written, and with what."""
        self._lock = threading.Lock()
        self._alive: dict[int, RunRow] = {}
        """The rows of the living and the queued at the last look, for the case that the list is damaged."""
        self._removed: dict[int, _Removed] = {}
        """Runs that were taken out of the queue last."""
        self._damage = store.notice
        self._warned = ""
        self._tools: list[tuple[str, WatchedRun]] = []
        self._waiting_tools: list[tuple[str, Callable[[], WatchedRun | None]]] = []
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Find the runs of an earlier GUI, and begin to look after them and the queue."""
        assert self._thread is None
        self._tick()
        self._thread = threading.Thread(target=self._loop, name="run queue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No longer look after them; what runs goes on."""
        self._closing.set()
        self._wake.set()
        if self._thread:
            self._thread.join()
        self.store.close()

    def add(self, planned: PlannedRun) -> int:
        """Put a run at the end of the queue. Raises ValueError when its folder cannot be written."""
        row_facts = {name: getattr(planned, name) for name in ("name", "tab", "family", "gpus")}
        launch = {
            **row_facts,  # a list that is lost is made anew from them
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
            row = self.store.add(planned.folder, owner=self._me, **row_facts)
            self._secrets[row.id] = planned.secrets
        self._wake.set()
        return row.id

    def row(self, id: int) -> RunRow | None:
        return self.store.row(id)

    def rows(self, limit: int = 200) -> list[RunRow]:
        """Newest first."""
        return self.store.rows(limit)

    def running(self) -> list[RunRow]:
        return self.store.living()

    @property
    def version(self) -> int:
        """Grows with every change that `rows`, `paused` or `after_failure` would show."""
        return self.store.version

    def watch(self, id: int) -> WatchedRun:
        """A run with its story; `refresh` reads on. Raises ValueError for an id that is in no row."""
        row = self._row(id)
        with self._lock:
            watched = self._watched.pop(id, None)
            if watched is None or watched.waiting:  # another GUI may have started it
                watched = _open_run(row)
            self._watched[id] = watched  # the newest last
            self._drop_old_states()
            return watched

    def _drop_old_states(self) -> None:
        if len(self._watched) > KEPT_RUN_STATES:
            over = [id for id, watched in self._watched.items() if not watched.alive]
            for id in over[:-KEPT_RUN_STATES]:
                del self._watched[id]

    def move(self, id: int, where: Where) -> None:
        """Change the order of the queue. Raises ValueError for a run that does not wait."""
        place = self._waiting(id).place or 1
        self.store.move(id, {"up": place - 1, "down": place + 1, "first": 1, "last": 10**9}[where])
        self._wake.set()

    def remove(self, id: int) -> None:
        """Take a run out of the queue; its folder goes too. Raises ValueError for one that does not wait."""
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
        """Put a run that was removed into the queue again, at its place. Raises ValueError when it is not known any
        more, or its folder cannot be written."""
        with self._lock:
            removed = self._removed.get(id)
        if removed is None:
            raise ValueError("This run cannot be put back any more: load its settings and start it again")
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
        """Give a run another name in the list, and a note. Raises ValueError for an id that is in no row."""
        self._row(id)
        self.store.update(id, name=name, note=note)

    def forget(self, id: int) -> None:
        """Take a run that is over from the list; its folder stays. Raises ValueError for another one."""
        row = self._row(id)
        if row.state not in ENDED or not self.store.forget(id, state=row.state):
            raise ValueError(f"{row.name} is not over: stop it, or take it out of the queue, first")
        with self._lock:
            self._watched.pop(id, None)

    def ask(self, id: int, kind: Command) -> None:
        """Ask a run for something at the end of its step: `save`, `sample` or `stop`. Raises ValueError."""
        self._living(id).ask(kind)

    def end_now(self, id: int) -> None:
        """Do not wait for the end of the step. Returns at once. Raises ValueError for a run that is not on."""
        threading.Thread(target=self._living(id).end_now, daemon=True).start()

    def run_on(self, gpus: str) -> RunRow | None:
        """A run that is on and uses one of these cards."""
        return next((row for row in self.store.living() if gpus_overlap(gpus, row.gpus)), None)

    def when_free(self, gpus: str, start: Callable[[], WatchedRun | None]) -> None:
        """Start a tool, no run of the list, when no run is on that uses these cards: before the runs that wait.

        `start` returns what it started; None when nobody wants it any more.
        """
        with self._lock:
            self._waiting_tools.append((gpus, start))
        self._wake.set()

    def _start_tools(self) -> None:
        with self._lock:
            waiting = list(self._waiting_tools)
        for gpus, start in waiting:
            if self.run_on(gpus):
                continue
            tool = start()
            with self._lock:
                self._waiting_tools.remove((gpus, start))
            if tool:
                self.reserve(gpus, tool)

    def reserve(self, gpus: str, tool: WatchedRun) -> None:
        """Let no queued run start on these cards while the tool, which is no run of the list, is at work."""
        with self._lock:
            self._tools = [(taken_gpus, each) for taken_gpus, each in self._tools if each.alive] + [(gpus, tool)]

    def _is_free(self, gpus: str) -> bool:
        """Whether no tool is at work on these cards, or waits for them."""
        with self._lock:
            taken = [taken_gpus for taken_gpus, tool in self._tools if tool.alive] + [
                taken_gpus for taken_gpus, _ in self._waiting_tools
            ]
        return not any(gpus_overlap(gpus, taken_gpus) for taken_gpus in taken)

    @property
    def paused(self) -> bool:
        """No queued run starts until somebody goes on."""
        return self.store.paused

    @paused.setter
    def paused(self, pause: bool) -> None:
        self.store.pause(pause)
        self._wake.set()

    @property
    def pause_reason(self) -> str:
        """Why the queue paused itself, in a sentence; empty when a person did."""
        return self.store.pause_reason

    @property
    def after_failure(self) -> bool:
        """Go on with the next run after one that failed; else the queue pauses."""
        return self.store.after_failure

    @after_failure.setter
    def after_failure(self, go_on: bool) -> None:
        self.store.after_failure = go_on

    def _row(self, id: int) -> RunRow:
        row = self.store.row(id)
        if row is None:
            raise ValueError(f"there is no run {id} in the list any more")
        return row

    def _waiting(self, id: int) -> RunRow:
        row = self._row(id)
        if row.state != "queued":
            raise ValueError(f"{row.name} does not wait in the queue")
        return row

    def _living(self, id: int) -> WatchedRun:
        row, watched = self._row(id), self.watch(id)
        if row.state == "queued":
            raise ValueError(f"{row.name} has not started: take it out of the queue instead")
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
        """Write down what the living runs tell, and start what can start. Whatever happens, the thread goes on."""
        try:
            living, queued = self.store.living(), self.store.queued()
            if self.store.notice != self._damage:
                self._restore()
                return
            self._alive = {row.id: row for row in (*living, *queued)}
            for row in living:
                self._follow_safely(row)
            self._start_next()
        except Exception as error:  # the disk is full, say: the next look may go better
            self._warn(f"The queue of runs could not be looked after: {error}")

    def _restore(self) -> None:
        """The list was damaged or deleted: what the folders of the runs did not bring back is in our memory."""
        notice = self.store.notice
        queued = [row for row in self._alive.values() if row.state == "queued"]
        self.store.restore(list(self._alive.values()))
        for place, row in enumerate(queued, 1):
            self.store.move(row.id, place)
        if queued:
            self.store.pause(True, notice)  # perhaps it was paused, and for a reason
        self._damage = notice

    def _follow_safely(self, row: RunRow) -> None:
        try:
            self._follow(row)
        except ValueError as error:  # the list cannot be written now
            self._warn(str(error))
        except Exception as error:  # of this run only
            self._warn(f"{row.folder}: what it tells could not be taken in ({type(error).__name__}: {error})")
            with contextlib.suppress(ValueError):
                self.store.update(row.id, error=f"what it tells could not be taken in ({error})")

    def _warn(self, text: str) -> None:
        if text != self._warned:  # not at every look
            self._warned = text
            logger.warning(text)

    def _follow(self, row: RunRow) -> None:
        """Write down where a living run is by now, and how it ended if it did."""
        if row.owner != self._me and process.is_alive(row.owner):
            return  # the GUI that started it knows more: its exit code, say
        if not self._has_begun(row):
            return
        watched = self.watch(row.id)
        run_state = watched.refresh()
        if watched.run and watched.run.orphaned:
            watched.warn_once("the process that led the run is gone; the others were asked to save and to stop")
            _stop_orphans(watched.run, self._grace)
            run_state.mark_stopping()
        elif watched.run and run_state.state == "stopping":
            watched.run.end_after_grace(self._grace)
        facts = _row_values(run_state)
        if watched.alive or not run_state.over:
            self._write_down(row, facts | {"state": "stopping" if run_state.over else run_state.state})
            return
        facts["results"] = [path for path in facts["results"] if Path(path).exists()]
        if self.store.end(row.id, run_state.state, run_state.ended, **facts) and not watched.stopped_by_user:
            self._pause_after(row, run_state.state)
        self._written.pop(row.id, None)

    def _has_begun(self, row: RunRow) -> bool:
        """Whether a run that was claimed has a process; one whose GUI died before it made one waits again."""
        folder = RunFolder(row.folder)
        if row.state != "starting" or row.process or folder.process.exists():
            return True
        with self._lock:
            watched = self._watched.get(row.id)
        if watched and watched.run:
            return True
        if row.owner == self._me:
            if time.time() - (row.started or 0.0) > STARTING_SECONDS:
                self.store.end(row.id, "failed", error="it could not be started, and the list could not be told why")
            return False
        if folder.console.exists():
            return True  # it may have begun, and must not begin twice
        self.store.update(row.id, state="queued", started=None)
        return False

    def _write_down(self, row: RunRow, facts: dict[str, Any]) -> None:
        when, before = self._written.get(row.id, (0.0, {}))
        changed = facts != before
        if changed and (facts["state"] != row.state or time.monotonic() - when >= UPDATE_EVERY):
            self.store.update(row.id, **facts)
            self._written[row.id] = time.monotonic(), facts

    def _pause_after(self, row: RunRow, state: State) -> None:
        if state in ("failed", "lost") and not self.store.after_failure and not self.store.paused:
            self.store.pause(True, f"{row.name} failed, and the queue is not to go on after a failed run")

    def _start_next(self) -> None:
        self._start_tools()
        passing: set[int] = set()
        for row in self.store.queued():
            if self.store.notice != self._damage:  # the living runs are not in the list: none starts beside them
                return
            if row.owner != self._me and process.is_alive(row.owner):
                continue  # the GUI that queued it has the environment that it was queued in, and its secrets
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
            with self._lock:  # nobody is to find the process in the folder and watch it twice
                run = process.start(*_command(launch, secrets), folder)
                self._watched[row.id] = WatchedRun(folder, run)
                self._secrets.pop(row.id, None)
        except ValueError as error:
            if self.store.end(row.id, "failed", error=str(error)):
                self._pause_after(row, "failed")
            return
        self.store.update(row.id, process=f"{run.pid} {run.born}")

    def _check(self, row: RunRow) -> str:
        """Why a run cannot be trained; a check that fails itself says nothing of the run."""
        try:
            return self._why_not(row)
        except ValueError as error:
            return str(error)
        except Exception as error:
            self._warn(f"{row.name} could not be checked before its start ({type(error).__name__}: {error})")
            return ""


def _open_run(row: RunRow) -> WatchedRun:
    """A run of the list, with its processes if they are alive."""
    folder = RunFolder(row.folder)
    if row.state == "queued":
        return WatchedRun(folder, None, waiting=True, run_state=RunState(state="queued"))
    if row.state in LIVING:
        run = process.find(folder, row.process)
        return WatchedRun(folder, run, waiting=run is None and row.state == "starting" and process.is_alive(row.owner))
    return WatchedRun(folder, None, End(row.state, row.error, row.ended))


def _stop_orphans(run: RunningRun, grace: float) -> None:
    """There is no accelerate launch that would end them: they save what they have, and go."""
    try:
        run.stop(grace)
    except OSError:  # a full disk: they cannot be asked
        run.end_after_grace(grace)


def _row_values(run_state: RunState) -> dict[str, Any]:
    results = [made.path for made in run_state.saved if not made.path.name.endswith(STATE_ENDING)]
    return {
        "step": run_state.step,
        "max_steps": run_state.max_steps,
        "results": [str(path) for path in dict.fromkeys(results)],
        "error": run_state.failure.get("error", ""),
    }


def _missing(launch: Any, mine: Mapping[str, str]) -> str:
    """What a queued run waits for: secrets are in the memory of the GUI that queued it, and nowhere else."""
    names = launch.get("secrets", []) if isinstance(launch, dict) else []
    missing = [name for name in names if name not in mine]
    if not missing:
        return ""
    return f"waits for {' and '.join(missing)}, which is never written down: load its settings and start it again"


def _command(launch: Any, secrets: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What to start, and what to add to the environment."""
    try:
        return [str(process_key) for process_key in launch["argv"]], {**launch["environment"], **secrets}
    except (KeyError, TypeError) as error:
        raise ValueError(
            "its folder, or launch.json in it, was deleted or damaged while it waited; start it again"
        ) from error


def _files_of_unused(folder: RunFolder) -> dict[Path, bytes]:
    """What `_delete_unused` deletes."""
    found = {}
    for file in (folder.config, folder.launch, folder.console):
        with contextlib.suppress(OSError):
            found[file] = file.read_bytes()
    return found


def _delete_unused(folder: RunFolder) -> None:
    """Delete the folder of a run that never started; whatever else somebody put there stays."""
    if folder.events_file.exists() or folder.process.exists():
        return
    with contextlib.suppress(OSError):
        for file in (folder.config, folder.launch, folder.console):
            file.unlink(missing_ok=True)
        folder.path.rmdir()
