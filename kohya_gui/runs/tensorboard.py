"""A single TensorBoard for this machine only, which ends with the GUI, even if the GUI is killed."""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut
from dataclasses import dataclass, field
from pathlib import Path

READY = re.compile(r" at (http://\S+)")
"""The line in which TensorBoard reports its address; it picks a free port itself."""
PATIENCE = 60.0
"""Seconds it may take to start: it imports a lot."""
GRACE = 5.0
LAST_LINES = 20
LINKED_TO_US = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: also when we are killed
if os.getppid() != int(sys.argv[1]):
    sys.exit("the GUI has ended")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass
class TensorBoard:
    """The single TensorBoard process of a GUI."""

    logdir: Path | None = None
    """Folder shown now or last."""
    url: str = ""
    _program: tuple[str, ...] = ("-m", "tensorboard.main")
    _child: "subprocess.Popen[str] | None" = field(default=None, repr=False)
    _lines: deque[str] = field(default_factory=deque, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, logdir: Path) -> str:
        """Start a TensorBoard for this folder, or reuse the running one, and return its address.

        Raises ValueError, one sentence, if the folder does not exist or the program exits immediately.
        """
        if not logdir.is_dir():
            raise ValueError(f"logging_dir: folder not found: '{logdir}'; a run that logs there creates it")
        with self._lock:
            if self.running and logdir == self.logdir:
                return self.url
            self._end()
            self.logdir, self.url = logdir, ""
            answer: Future[str] = Future()
            lines: deque[str] = deque(maxlen=LAST_LINES)
            self._lines = lines  # a new list: the previous process may still be printing
            # PDEATHSIG fires when the starting thread ends, so that thread lives as long as the child
            tended = (logdir, answer, lines)
            threading.Thread(target=self._tend, args=tended, name="tensorboard", daemon=True).start()
            why = ""
            try:
                self.url = answer.result(PATIENCE)
            except TimedOut:  # not the built-in TimeoutError in Python 3.10
                why = f"no answer after {PATIENCE:.0f} s"
            if not self.url:
                self._end()
                raise ValueError(f"TensorBoard did not start: {why or self._last_words()}")
            return self.url

    def stop(self) -> None:
        """Stop it if it is running."""
        with self._lock:
            self._end()

    def _tend(self, logdir: Path, answer: "Future[str]", lines: deque[str]) -> None:
        """Start it, resolve `answer` with its address or "", and read its output until it ends."""
        asked = ["--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
        linked = ["-c", LINKED_TO_US, str(os.getpid())] if sys.platform == "linux" else []
        try:
            self._child = child = subprocess.Popen(
                [sys.executable, *linked, *self._program, *asked],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            lines.append(str(error))
            answer.set_result("")
            return
        atexit.register(self.stop)
        assert child.stdout
        with child.stdout:
            for line in child.stdout:
                lines.append(line.strip())
                if not answer.done() and (found := READY.search(line)):
                    answer.set_result(found[1])
        child.wait()
        if not answer.done():
            answer.set_result("")

    def _last_words(self) -> str:
        return next((line for line in reversed(self._lines) if line), "it exited without output")

    def _end(self) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        for kill in (False, True):
            with contextlib.suppress(ProcessLookupError):
                if sys.platform == "win32":
                    child.terminate()
                else:
                    os.killpg(child.pid, signal.SIGKILL if kill else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
                return


TENSORBOARD = TensorBoard()
"""The one of this process, shared by all tabs and browsers."""
