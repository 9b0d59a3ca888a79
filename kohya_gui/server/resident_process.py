"""A resident process that answers the page: started when needed, replaced when it ends."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from sd_scripts.formats.fast_json import dumps, loads
from sd_scripts.runs.process import WINDOWS_GROUP

LONGEST = 120.0
"""Seconds to read the sizes of a large dataset, the first time."""


class ResidentProcess:
    """Runs a module that serves requests (`sd_scripts.machine.resident`), one at a time. All methods are
    thread-safe."""

    def __init__(self, program: str, longest: float = LONGEST, idle: float | None = None) -> None:
        """`idle`: seconds without a request after which the process ends."""
        self._program, self._longest, self._idle = program, longest, idle
        self._one_at_a_time = threading.Lock()
        self._timer: threading.Timer | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it is alive: it imports its modules before the first answer is wanted."""
        if self._one_at_a_time.acquire(blocking=False):  # else it is at work
            try:
                with contextlib.suppress(OSError):  # reported when it is asked
                    self._alive()
            finally:
                self._one_at_a_time.release()

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the program's answer to a request.

        A process that ends without an answer, because it was killed or its code has changed, is replaced once. Raises
        TimeoutError after `longest` seconds, when the process is killed, and EOFError if the second one ends as well.
        """
        line = dumps(request) + b"\n"
        with self._one_at_a_time:
            try:
                for _ in range(2):
                    if answer := self._answer(self._alive(), line):
                        content: Mapping[str, Any] = loads(answer)
                        return content
                    self._end()
            finally:
                self._end_later()
        raise EOFError

    def _end_later(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._idle:
            self._timer = threading.Timer(self._idle, self.close)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """End the process."""
        with self._one_at_a_time:
            self._end()

    def _alive(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C is for the GUI, whose end closes our pipe
                creationflags=WINDOWS_GROUP,
            )
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]", line: bytes) -> bytes:
        """Return the line that the process answers; empty if it ends first."""
        assert process.stdin
        assert process.stdout
        late = threading.Event()

        def cut_off() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._longest, cut_off)
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it has just ended
            answer = b""
        finally:
            timer.cancel()
        if late.is_set():
            self._end()
            raise TimeoutError
        return answer if answer.endswith(b"\n") else b""

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(OSError), self._process:  # closes its pipes
                self._process = None
