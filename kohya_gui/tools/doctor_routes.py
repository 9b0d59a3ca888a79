"""The page's checks of this machine: one process at a time, and HTTP routes under /studio that start and follow it."""

import atexit
import json
import secrets
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui import doctor
from kohya_gui.server.json_routes import NotFound, dated, download, get, listed_run, post
from sd_scripts.formats.private import private_folder
from sd_scripts.runs import process
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import state_folder

PATIENCE = 1800.0
"""Seconds until the process is ended; each check has a limit of its own."""


class CheckProcess:
    """Runs the checks and remembers their last findings, for all browsers."""

    def __init__(self, flags: tuple[str, ...] = ()) -> None:
        self._flags = flags
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._launch = secrets.token_hex(4)
        self._changes = 0
        self._titles: list[str] = []
        self._findings: list[dict[str, str]] = []
        self._ended = 0.0
        self._error = ""
        self.zip_file: Path | None = None

    @property
    def running(self) -> bool:
        return self._child is not None

    def start(self, zip_file: Path | None = None, runs: tuple[Path, ...] = ()) -> None:
        """Start the checks, which then also write a zip. Raises ValueError if they are running or cannot be started."""
        flags = [*self._flags, "--json"]
        if zip_file:
            flags += ["--zip", str(zip_file), *(word for run in runs for word in ("--run", str(run)))]
        with self._lock:
            if self.running:
                raise ValueError("The checks are already running")
            try:
                self._child = child = subprocess.Popen(
                    doctor.command(*flags),
                    env=doctor.environment() | {"PYTHONIOENCODING": "utf-8"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,  # a group of its own on POSIX
                )
            except OSError as error:
                raise ValueError(f"The checks cannot be started: {error.strerror}") from error
            self._titles = []
            self._findings = []
            self._error = ""
            self.zip_file = None
            self._changes += 1
        atexit.register(self.stop)
        threading.Thread(target=self._follow, args=(child, zip_file), name="doctor", daemon=True).start()

    def stop(self) -> None:
        """End the checks and their own process, if they are running."""
        with self._lock:
            if child := self._child:
                self._error = "The checks were cancelled"
                process.signal_group(child.pid, kill=True)

    def state(self, known: str) -> dict[str, Any] | None:
        """Return the data that the page shows, or None if it has this version already."""
        with self._lock:
            version = f"{self._launch}.{self._changes}"
            if known == version:
                return None
            return {
                "known": version,
                "running": self.running,
                "titles": self._titles,
                "findings": self._findings,
                "ended": self._ended,
                "error": self._error,
                "zip": self.zip_file is not None,
            }

    def _follow(self, child: "subprocess.Popen[str]", zip_file: Path | None) -> None:
        """Read the process's output until it ends."""
        timer = threading.Timer(PATIENCE, process.signal_group, (child.pid, True))
        timer.start()
        last_line = ""
        assert child.stdout
        with child.stdout:
            for line in child.stdout:
                report = _object(line)
                if report is None:
                    last_line = line.strip() or last_line
                    continue
                with self._lock:
                    self._titles = report.get("checks", self._titles)
                    if "status" in report:
                        self._findings = [*self._findings, report]
                    self._changes += 1
        code = child.wait()
        timer.cancel()
        atexit.unregister(self.stop)
        with self._lock:
            complete = bool(self._titles) and len(self._findings) == len(self._titles)
            self.zip_file = zip_file if complete and zip_file and zip_file.is_file() else None
            if not self._error and (not complete or (zip_file and not self.zip_file)):
                self._error = last_line or f"The checks ended with exit code {code}"
            self._child = None
            self._ended = time.time()
            self._changes += 1


def _object(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


CHECKS = CheckProcess()
"""The one of this process, shared by all browsers."""


def routes(queue: RunQueue, checks: CheckProcess = CHECKS) -> list[Route]:
    def state(request: Request) -> Any:
        return checks.state(request.query_params.get("known", ""))

    def start(request: Request, body: Mapping[str, Any]) -> None:
        """Start the checks; with `zip` also collect the diagnostics, of the run with the id `run` or of the last."""
        if not body.get("zip"):
            checks.start()
            return
        row = None if body.get("run") is None else listed_run(queue, body["run"])
        if row and not row.folder.is_dir():
            raise NotFound(f"The folder of this run no longer exists: '{row.folder}'")
        folder = private_folder(state_folder())
        checks.start(folder / "diagnostics.zip", (row.folder,) if row else ())

    def diagnostics(request: Request) -> Any:
        file = checks.zip_file
        if file is None or not file.is_file():
            raise NotFound("There are no diagnostics yet")
        return download(file, f"{dated('diagnostics', file)}.zip")

    return [
        get("doctor", state),
        post("doctor", start),
        post("doctor/cancel", lambda request, body: checks.stop()),
        get("doctor/zip", diagnostics),
    ]
