"""TensorBoard beside the GUI: one, for this machine alone, which ends when the GUI ends, however that ends."""

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
"""TensorBoard's own word for being up; it chooses a free port by itself."""
PATIENCE = 60.0
"""Seconds that it may take to start: it imports much."""
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
    """The one TensorBoard of a GUI."""

    logdir: Path | None = None
    """What it shows, or showed last."""
    url: str = ""
    _program: tuple[str, ...] = ("-m", "tensorboard.main")
    _child: "subprocess.Popen[str] | None" = field(default=None, repr=False)
    _lines: deque[str] = field(default_factory=deque, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, logdir: Path) -> str:
        """The address of a TensorBoard that shows this folder; the one that is up, if it does.

        Raises ValueError, one sentence, where there is no such folder or the program ends at once.
        """
        if not logdir.is_dir():
            raise ValueError(f"logging_dir: there is no folder '{logdir}' yet; a run that logs there makes it")
        with self._lock:
            if self.running and logdir == self.logdir:
                return self.url
            self._end()
            self.logdir, self.url = logdir, ""
            answer: Future[str] = Future()
            lines: deque[str] = deque(maxlen=LAST_LINES)
            self._lines = lines  # its own: the one before may still have last words
            # the system ends the child with the thread that began it, so that thread stays until the child ends
            tended = (logdir, answer, lines)
            threading.Thread(target=self._tend, args=tended, name="tensorboard", daemon=True).start()
            why = ""
            try:
                self.url = answer.result(PATIENCE)
            except TimedOut:  # another than the built-in one in Python 3.10
                why = f"no answer after {PATIENCE:.0f} s"
            if not self.url:
                self._end()
                raise ValueError(f"TensorBoard did not start: {why or self._last_words()}")
            return self.url

    def stop(self) -> None:
        """End it, if it is up."""
        with self._lock:
            self._end()

    def _tend(self, logdir: Path, answer: "Future[str]", lines: deque[str]) -> None:
        """Begin it, answer with its address, or "" where it has none, and read what it prints until it ends."""
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
        return next((line for line in reversed(self._lines) if line), "it ended without a word")

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
"""That of this process: however many tabs and browsers ask, there is one."""
