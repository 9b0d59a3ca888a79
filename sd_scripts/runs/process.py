"""Start a training process, find it again, and end it: gracefully, or by killing its process group."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.runs.folder import RunFolder, read_json
from sd_scripts.runs.run_state import State

GRACE = 300.0
"""Seconds without activity between "stop" and termination; a step that compiles takes minutes."""
WINDOWS_GROUP = 0x00000200 | 0x08000000 if sys.platform == "win32" else 0
"""CREATE_NEW_PROCESS_GROUP and CREATE_NO_WINDOW."""
TERM_GRACE = 10.0
"""Seconds between asking the processes to end and killing them."""
MARK = "SD_SCRIPTS_RUN"
"""Environment variable with the run folder, by which we recognise the processes of a run."""


@dataclass
class LiveRun(ABC):
    """A run that may still be alive, wherever it runs."""

    folder: RunFolder
    _ending: threading.Thread | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def key(self) -> str:
        """A key by which a later GUI finds it again."""

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def terminate(self, grace: float = TERM_GRACE) -> None:
        """End the run now, without waiting for the step."""

    @property
    def orphaned(self) -> bool:
        """Whether processes of the run are alive whose launcher, which would end them, is gone."""
        return False

    @property
    def exit_code(self) -> int | None:
        """The exit code of the run's process, if known."""
        return None

    @property
    def waits(self) -> bool:
        """Whether a scheduler has yet to start it, for the first time or again."""
        return False

    @property
    def settled(self) -> bool:
        """Whether the last events of a run that is no longer alive can be read by now."""
        return True

    @property
    def about(self) -> str:
        """The scheduler's report on it; empty if there is none."""
        return ""

    @property
    def reported_end(self) -> tuple[State, str] | None:
        """How it ended according to its scheduler, and why."""
        return None

    def wait(self, seconds: float) -> bool:
        """Wait for the run to end; return whether it did within `seconds`."""
        end = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    @property
    def ends_after_grace(self) -> bool:
        """Whether end_after_grace was called."""
        return self._ending is not None

    def end_after_grace(self, grace: float = GRACE) -> None:
        """Terminate a run that was asked to stop after `grace` seconds without activity; does not block."""
        if self._ending is None:
            self._ending = threading.Thread(target=self._end_after, args=(grace,), daemon=True)
            self._ending.start()

    def _end_after(self, grace: float) -> None:
        asked = time.time()
        while self.alive:
            if time.time() - max(asked, self._last_activity()) > grace:
                self.terminate(min(grace, TERM_GRACE))
                return
            time.sleep(0.2)

    def _last_activity(self) -> float:
        try:
            return self.folder.events_file.stat().st_mtime
        except OSError:
            return 0.0


@dataclass
class RunningRun(LiveRun):
    """A training process of this machine, whoever started it; a pid alone could have been reused."""

    pid: int
    born: str
    """The system's start time of the pid; the same pid with another start time is another process."""
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        return f"{self.pid} {self.born}"

    @property
    def alive(self) -> bool:
        """Whether any process of the run is alive: the leader or its children."""
        return self.leader_alive or self.orphaned

    @property
    def leader_alive(self) -> bool:
        """Whether the process that we started is alive."""
        if self._child is not None:
            return self._child.poll() is None
        return process_born(self.pid) == self.born

    @property
    def orphaned(self) -> bool:
        """Whether the leader is gone while others of its process group are alive."""
        # a pid is not reused while its group exists: if another process has it, ours are gone
        return not self.leader_alive and process_born(self.pid) is None and bool(group_members(self.pid, self.folder))

    @property
    def exit_code(self) -> int | None:
        """The leader's exit code; None while it runs, or if another GUI started it."""
        return self._child.poll() if self._child is not None else None

    def terminate(self, grace: float = TERM_GRACE) -> None:
        """Terminate all processes of the run now, without saving."""
        self._signal_group(kill=False)
        if not self.wait(grace):
            self._signal_group(kill=True)
            self.wait(grace)

    def _signal_group(self, kill: bool) -> None:
        if self.alive:
            signal_group(self.pid, kill)


def signal_group(leader: int, kill: bool) -> None:
    """Terminate or kill a process, started as the leader of its own group, and its children."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(leader)], capture_output=True, check=False)
        return
    with contextlib.suppress(ProcessLookupError):  # it may have just exited
        os.killpg(leader, signal.SIGKILL if kill else signal.SIGTERM)


STARTED_BY = "SD_SCRIPTS_STARTED_BY"
"""Holds the process id of the GUI that started a process."""


def parent() -> int:
    """Return the id of the process that started this one, also if it is gone since. Not so on Windows, where the
    interpreter of an environment starts another."""
    return int(os.environ.get(STARTED_BY, "0") if os.name == "posix" else 0) or os.getppid()


def run_in_terminal(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `argv` in this terminal to its end and return its exit code. Ctrl+C reaches it too, and it may save first."""
    with subprocess.Popen(argv, env=env) as running:
        while True:
            try:
                return running.wait()
            except KeyboardInterrupt:
                continue


def start(argv: Sequence[str], env: Mapping[str, str], folder: RunFolder) -> RunningRun:
    """Run `argv` in its own process group, with `env` added to our environment and its output in console.log.

    Raises ValueError if the program cannot be started or the folder cannot be written.
    """
    more = {
        STARTED_BY: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        MARK: str(folder.path.absolute()),
    }
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        console = folder.console.open("ab")
    except OSError as error:
        raise ValueError(f"run folder: '{error.filename}' cannot be written ({error.strerror})") from error
    with console:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, **more, **env},
                start_new_session=True,  # a group of its own on POSIX
                creationflags=WINDOWS_GROUP,
            )
        except OSError as error:
            raise ValueError(f"{argv[0]}: cannot be started ({error.strerror})") from error
    run = RunningRun(folder, child.pid, process_born(child.pid) or "", child)
    try:
        write_whole(folder.process, json.dumps({"pid": run.pid, "born": run.born}) + "\n")
    except OSError as error:  # a run that no later GUI could find must not continue
        run.terminate(grace=1.0)
        raise ValueError(f"run folder: '{folder.process}' cannot be written ({error.strerror})") from error
    return run


def find(folder: RunFolder, process_key: str = "") -> RunningRun | None:
    """Return the run's processes if any is still alive; `process_key` is the key of its leader, if known.

    The run folder names the process, too, unless it was deleted or the GUI was killed before it wrote process.json.
    """
    record = read_json(folder.process)
    if isinstance(record, dict) and record.get("born") and isinstance(record.get("pid"), int):
        pid, born = record["pid"], str(record["born"])
    elif process_key:
        pid, born = int(process_key.partition(" ")[0]), process_key.partition(" ")[2]
    elif marked := next(_marked(folder), None):
        pid, born = marked[1], process_born(marked[1]) or ""
    else:
        return None
    run = RunningRun(folder, pid, born)
    return run if run.alive else None


def process_key(pid: int | None = None) -> str:
    """Return a key for a process, by default this one, that is unique on this machine, also over time."""
    pid = os.getpid() if pid is None else pid
    return f"{pid} {process_born(pid)}"


def is_alive(process_key: str) -> bool:
    """Return whether the process with this key is alive."""
    pid, _, born = process_key.partition(" ")
    return pid.isdecimal() and process_born(int(pid)) == born


def group_members(leader: int, folder: RunFolder) -> list[int]:
    """Return the processes of the group of `leader` that belong to the run of this folder.

    Group ids are reused, so only processes with the run's environment variable count. Systems that hide the
    environment of a process find no orphans.
    """
    try:
        os.killpg(leader, 0)
    except (OSError, AttributeError):  # the usual case: the group is gone; Windows has none
        return []
    return [pid for pid, group in _marked(folder) if group == leader]


def _marked(folder: RunFolder) -> Iterator[tuple[int, int]]:
    """Yield the processes that carry a run's environment variable, with their groups; the leader may be gone."""
    for pid in psutil.pids() if os.name == "posix" else ():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or it just exited
            if psutil.Process(pid).environ().get(MARK) == str(folder.path.absolute()):
                yield pid, os.getpgid(pid)


def process_born(pid: int) -> str | None:
    """Return an opaque start time of a process; None if the process does not exist."""
    if sys.platform == "linux":
        return _born_linux(pid)
    if sys.platform == "win32":
        with contextlib.suppress(psutil.Error):
            return str(psutil.Process(pid).create_time())
        return None
    # psutil's time follows adjustments of the clock here, as if the process were another one
    shown = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    words = shown.stdout.split()
    return None if not words or words[-1].startswith("Z") else " ".join(words[:-1])


def _born_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may contain spaces
    return None if fields[0] == "Z" else f"{boot}:{fields[19]}"
