"""A tool in a process of its own, one at a time: now or, if it computes on the GPU, when the run there ends."""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kohya_gui.form.field_links import FieldLinks
from sd_scripts.formats.atomic_files import OLD, beside, write_whole
from sd_scripts.runs import process
from sd_scripts.runs.folder import RunFolder, new_run_folder, read_json
from sd_scripts.runs.queue import RunQueue, gpu_set
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.store import state_folder
from sd_scripts.runs.watched import End, WatchedRun
from sd_scripts.settings.launching.accelerate_command import sees_no_gpu


class ToolJob:
    """The current or last process of a tool."""

    name = ""
    """Part of the names of its folders."""
    busy_sentence = ""
    """Why it cannot be started while it is busy; empty if its requests go to the process that is there."""
    uses_gpu = True
    """Whether it waits for the run on the GPU, and runs wait for it."""

    def __init__(self, queue: RunQueue) -> None:
        """Watch the job that an earlier GUI left waiting or running, if there is one."""
        self._queue = queue
        self._launch = secrets.token_hex(4)
        self._before = ""
        """Name of the run that was active when it was requested."""
        self.watched: WatchedRun | None = None
        self.record: Mapping[str, Any] = {}
        """The subject of the current or last job, as passed to `begin`."""
        self._find_again()

    @property
    def busy(self) -> bool:
        return self.watched is not None and not self.watched.refresh().over  # one that reported its end may still exit

    @property
    def waits_for(self) -> str:
        """Name of the run that it waits for; empty if it does not wait."""
        return self._before if self.watched and self.watched.waiting else ""

    @property
    def version(self) -> str:
        """A text that changes whenever the job or its state does, and with each start of the GUI."""
        if self.watched is None:
            return self._launch
        state = self.watched.run_state
        return (
            f"{self._launch}.{self.watched.folder.path.name}.{self.watched.waiting}.{state.event_count}.{state.state}"
        )

    def check_idle(self) -> None:
        """Raise ValueError, one sentence, if it cannot be started because it is busy."""
        if self.busy_sentence and self.busy:
            raise ValueError(self.busy_sentence)

    def result(self, name: str) -> Mapping[str, Any] | None:
        """Return the JSON object in a file that the process wrote into its folder; None if there is none."""
        content = read_json(self.watched.folder.path / name) if self.watched else None
        return content if isinstance(content, dict) else None

    def begin(
        self,
        argv: Sequence[str],
        prepare: Callable[[WatchedRun], Sequence[str]] | None = None,
        record: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start a command now, or when the run on the GPU ends. Raises ValueError, one sentence, if that fails.

        `prepare` may write files into the folder of the job and returns more arguments. With a `record` of the
        job's subject, a GUI that is started later finds the job again, still waiting or running. Command and record are
        saved in the folder, so they must not contain secrets; `secrets` are variables of the process, and never
        saved.
        """
        self.check_idle()
        gpus = gpu_set("", sees_no_gpu())
        try:
            folder = new_run_folder(state_folder() / "tools", self.name)
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be created ({error.strerror})") from error
        run = self._queue.run_on(gpus) if self.uses_gpu else None
        self._before = run.name if run else ""
        if self.uses_gpu and not run:
            self._queue.end_idle_tools(gpus)
        job = WatchedRun(folder, None, waiting=True)
        command = [*argv, *(prepare(job) if prepare else ()), "--run_dir", str(folder.path)]
        if record is not None:
            _write_launch(folder, command, record)
        self.watched = job
        self.record = record or {}
        if run:
            self._wait(job, command, gpus, secrets)
        else:
            self.watched = WatchedRun(folder, process.start(command, secrets, folder))
            if self.uses_gpu:
                self._queue.reserve(gpus, self.watched, self.make_way)

    def _find_again(self) -> None:
        """Watch the oldest job that an earlier GUI left. One that waits starts at the queue's next tick at which the
        GPU is free."""
        gpus = gpu_set("", sees_no_gpu())
        for path in sorted((state_folder() / "tools").glob(f"*-{self.name}*")):
            folder = RunFolder(path)
            launch = read_json(folder.launch)
            if not _is_launch(launch) or process.is_alive(launch["owner"]):
                continue
            started = folder.console.exists()
            run = process.find(folder) if started else None
            if (started and run is None) or not _claim(folder, launch):
                continue
            self.watched = WatchedRun(folder, run, waiting=run is None)
            self.record = launch["record"]
            if run:
                self._queue.reserve(gpus, self.watched, self.make_way)
            else:
                before = self._queue.run_on(gpus)
                self._before = before.name if before else ""
                self._wait(self.watched, launch["argv"], gpus)
            return

    def _wait(
        self, job: WatchedRun, argv: Sequence[str], gpus: str, secrets: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._queue.when_free(gpus, lambda: self._begin_waiting(job, argv, secrets), self.make_way)

    def _begin_waiting(self, waiting: WatchedRun, argv: Sequence[str], secrets: Mapping[str, str]) -> WatchedRun | None:
        """Start the waiting job, unless it was stopped in the meantime."""
        if not waiting.waiting:
            return None
        try:
            self.watched = WatchedRun(waiting.folder, process.start(argv, secrets, waiting.folder))
        except ValueError as error:
            waiting.waiting = False
            waiting.end = End("failed", str(error))
            return None
        return self.watched

    def make_way(self) -> None:
        """Called when a queued run waits for the GPU: a process that has nothing to do may end."""

    def stop(self) -> None:
        if self.watched and self.watched.waiting:
            self.watched.waiting = False
            self.watched.end = End("stopped")
            with contextlib.suppress(OSError):  # a later GUI must not start it
                self.watched.folder.launch.unlink(missing_ok=True)
        elif self.watched:
            self.watched.stop()


def shown_state(run_state: RunState, links: FieldLinks, lost: str = "The job ended without a result") -> dict[str, Any]:
    """Return the state of a job for the page, its error and warnings with links to the fields of its form. `lost`: the
    error of a job that ended without a word."""
    failure = run_state.failure
    error = failure.get("error", "")
    if run_state.state == "lost":
        printed = (failure.get("details") or error).splitlines()
        error = printed[-1] if printed else lost
    started = run_state.started
    return {
        "state": run_state.state,
        "over": run_state.over,
        "doing": run_state.doing,
        "done": run_state.done,
        "total": run_state.total,
        "error": error,
        "html": error and links.refused(ValueError(error)),
        "warnings": [links.words(text) for text in run_state.warnings],
        "seconds": (run_state.ended or time.time()) - started if started else None,
    }


def _write_launch(folder: RunFolder, argv: Sequence[str], record: Mapping[str, Any]) -> None:
    launch = {"owner": process.process_key(), "argv": list(argv), "record": dict(record)}
    try:
        write_whole(folder.launch, json.dumps(launch, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"{folder.launch} cannot be written ({error.strerror})") from error


def _is_launch(launch: Any) -> bool:
    kinds = {"owner": str, "argv": list, "record": dict}
    return isinstance(launch, dict) and all(isinstance(launch.get(key), kind) for key, kind in kinds.items())


def _claim(folder: RunFolder, launch: Mapping[str, Any]) -> bool:
    """Take over a job that an earlier GUI left; return whether that succeeded, as two GUIs may start together."""
    taken = beside(folder.launch, OLD)
    try:
        os.rename(folder.launch, taken)  # succeeds for one of them
        _write_launch(folder, launch["argv"], launch["record"])
        taken.unlink()
    except (OSError, ValueError):
        return False
    return True
