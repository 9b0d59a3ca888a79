"""Starting a training, finding it again, and ending it: gently first, the whole process group if it must be."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sd_scripts.runs.folder import RunFolder, read_json, write_whole

GRACE = 300.0
"""Seconds without a sign of life that a run has between "stop" and being ended; a step that compiles takes minutes."""
WINDOWS_GROUP = 0x00000200 | 0x08000000 if sys.platform == "win32" else 0
"""CREATE_NEW_PROCESS_GROUP and CREATE_NO_WINDOW."""
TERM_GRACE = 10.0
"""Seconds between asking the processes to end and killing them."""


@dataclass
class RunningRun:
    """A training process, whoever started it. Its pid alone could belong to another program by now."""

    folder: RunFolder
    pid: int
    born: str
    """When the system says that this pid was started; the same pid with another birth is another process."""
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return process_born(self.pid) == self.born

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs, and for a run that an earlier GUI started."""
        return self._child.poll() if self._child is not None else None

    def wait(self, seconds: float) -> bool:
        """Whether the run ended within `seconds`."""
        end = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def stop(self, grace: float = GRACE) -> None:
        """Ask the run to end its step, save and leave; end it when it has shown no sign of life for `grace` seconds."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.folder.command("stop")
        threading.Thread(target=self._end_after, args=(grace,), daemon=True).start()

    def _end_after(self, grace: float) -> None:
        asked = time.time()
        while self.alive:
            if time.time() - max(asked, self._last_sign()) > grace:
                self.terminate()
                return
            time.sleep(0.2)

    def _last_sign(self) -> float:
        events = self.folder.path / "events.jsonl"
        return events.stat().st_mtime if events.exists() else 0.0

    def terminate(self, grace: float = TERM_GRACE) -> None:
        """End the run and all its processes now; nothing more is saved."""
        self._signal_group(kill=False)
        if not self.wait(grace):
            self._signal_group(kill=True)
            self.wait(grace)

    def _signal_group(self, kill: bool) -> None:
        if not self.alive:
            return
        if sys.platform == "win32":
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(self.pid)], capture_output=True, check=False)
            return
        with contextlib.suppress(ProcessLookupError):  # it may end by itself just now
            # start() made the process the leader of its own group
            os.killpg(self.pid, signal.SIGKILL if kill else signal.SIGTERM)


def start(argv: Sequence[str], env: Mapping[str, str], folder: RunFolder) -> RunningRun:
    """Run `argv` in a process group of its own, with `env` added to ours and all it prints in the folder's console.log.

    Raises ValueError when the program cannot be started.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.console.open("ab") as console:
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", **env},
                start_new_session=True,  # a group of its own on POSIX
                creationflags=WINDOWS_GROUP,
            )
        except OSError as error:
            raise ValueError(f"{argv[0]}: cannot be started ({error.strerror})") from error
    born = process_born(child.pid) or ""
    write_whole(folder.process, json.dumps({"pid": child.pid, "born": born}) + "\n")
    return RunningRun(folder, child.pid, born, child)


def find(folder: RunFolder) -> RunningRun | None:
    """The process of a run that somebody started earlier, if it is still alive."""
    record = read_json(folder.process)
    if not isinstance(record, dict) or not record.get("born"):
        return None
    run = RunningRun(folder, int(record["pid"]), str(record["born"]))
    return run if run.alive else None


def process_born(pid: int) -> str | None:
    """A word for the moment at which a process began; None if there is no such process."""
    if sys.platform == "linux":
        return _born_linux(pid)
    if sys.platform == "win32":
        return _born_windows(pid)
    shown = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    words = shown.stdout.split()
    return None if not words or words[-1].startswith("Z") else " ".join(words[:-1])


def _born_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return None if fields[0] == "Z" else f"{boot}:{fields[19]}"


def _born_windows(pid: int) -> str | None:
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return None
    try:
        born, ended, in_kernel, in_user = (ctypes.c_ulonglong() for _ in range(4))
        times = (ctypes.byref(born), ctypes.byref(ended), ctypes.byref(in_kernel), ctypes.byref(in_user))
        known = kernel.GetProcessTimes(handle, *times)
        return str(born.value) if known and ended.value == 0 else None
    finally:
        kernel.CloseHandle(handle)
