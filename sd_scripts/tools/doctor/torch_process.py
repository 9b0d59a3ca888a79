"""The process that runs the checks of torch_checks.py: it may die without taking the others with it.

It reads the name of a check per line and answers with its finding; `python -m sd_scripts.tools.doctor.torch_process`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO

from sd_scripts.tools.doctor.check import Check, Finding, problem
from sd_scripts.tools.doctor.torch_checks import CHECKS

GRACE = 10.0
"""Seconds until a process that was asked to end is killed."""


class TorchProcess:
    """Runs checks in a child process, which is started when needed, and again after it died."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> "TorchProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._end(self._child)

    def run(self, check: Check) -> Finding:
        """Run a check; a process that dies, or takes longer than the check may, becomes a finding."""
        child = self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(check.seconds, end)
        timer.start()
        try:
            child.stdin.write(f"{check.name}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:  # it died before it could read
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return Finding(**json.loads(answer))
        how = f"did not answer within {check.seconds:.0f} s" if late.is_set() else f"ended with {_exit(child.wait())}"
        last = self._last_words()
        self._end(child)
        return problem(f"Its process {how}{f': {last}' if last else ''}", check.remedy)

    def _started(self) -> "subprocess.Popen[str]":
        if self._child is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            self._child = subprocess.Popen(
                [sys.executable, "-m", __spec__.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                errors="replace",
            )
        return self._child

    def _last_words(self) -> str:
        assert self._errors
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1][:300].rstrip(".") if lines else ""

    def _end(self, child: "subprocess.Popen[str]") -> None:
        self._child = None
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if self._errors:
            self._errors.close()


def _exit(code: int) -> str:
    """Return an exit code in words: the name of the signal, if one ended the process."""
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}" if code < 256 else f"exit code 0x{code:08X}"  # Windows: 0xC0000005, an access violation


def answer_requests() -> None:
    """Answer the requests on stdin until it is closed; output of libraries goes to stderr."""
    with suppress(ImportError):  # of a broken environment; importing inductor would choose a folder of PyTorch's
        from sd_scripts.machine.compile_cache import use_own_folder

        use_own_folder()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    checks = {check.name: check for check in CHECKS}
    for line in sys.stdin:
        finding = checks[line.strip()].run()
        print(json.dumps(vars(finding)), file=answers, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of processes takes longer than one small block
    answer_requests()
