"""New Pythons without their imports: forked from a process that has everything imported. Such a process behaves like
a fresh one, but for the imports and its name in the list of processes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import inspect
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.support.suite.fresh import can_fork, processes

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.connection import Connection

TESTS = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36
_one_at_a_time = threading.Lock()


@pytest.fixture
def warm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork each Python that is started with a program, and those that it starts, where that is possible."""
    if can_fork():
        monkeypatch.setattr(subprocess, "Popen", WarmPython)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Fork the processes of pytest-xdist too, and let them share the process they fork from. Importing everything in
    each of them, and again in a server of its own, takes 40 seconds of a core."""
    if can_fork():
        subprocess.Popen = WarmTester  # type: ignore[misc]


@dataclass
class Stream:
    """A file descriptor, which has a different number in the process that it is sent to."""

    number: int

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)


def _received(sent: Any) -> Stream:
    return Stream(sent.detach())


@dataclass(kw_only=True)
class Program:
    words: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[Stream]
    """The process's input, output and errors."""
    new_session: bool

    def run(self) -> NoReturn:
        """Let this process be a new one that runs the program."""
        atexit._clear()
        for each in signal.valid_signals():
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        if self.new_session:
            os.setsid()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        for number, stream in enumerate(self.streams):
            os.dup2(stream.number, number)
        for console in (sys.stdout, sys.stderr):
            console.reconfigure(line_buffering=True)
        multiprocessing.set_start_method(None, force=True)  # a process of the fork server would start its own from one
        subprocess.Popen = WarmPython
        tempfile.tempdir = None  # which may have been read in a different environment
        os._exit(self._status())

    def _status(self) -> int:
        status = 1
        try:
            self._run()
            status = 0
        except SystemExit as leaving:
            if leaving.code is None or isinstance(leaving.code, int):
                status = leaving.code or 0
            else:
                print(leaving.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    def _run(self) -> None:
        if self.words[0] == "-c":
            sys.argv = ["-c", *self.words[2:]]
            exec(self.words[1], {"__name__": "__main__"})
        elif self.words[0] == "-m":
            sys.argv = self.words[1:]
            runpy.run_module(self.words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = self.words
            sys.path.insert(0, str(Path(self.words[0]).parent))
            runpy.run_path(self.words[0], run_name="__main__")


class Tester(Program):
    """A process of pytest-xdist: the tests in it start processes as they would in one that was not forked."""

    def _run(self) -> None:
        subprocess.Popen = subprocess.Popen.__base__  # type: ignore[misc]
        sys.stdin = os.fdopen(0, closefd=False)
        multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
        # the server that forked this process can be asked for others, while its own children would start a new one
        server = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
        server.ensure_running = multiprocessing.resource_tracker.ensure_running
        for name, module in list(sys.modules.items()):  # pytest rewrites the assertions of modules imported only now
            if (file := getattr(module, "__file__", None)) and TESTS in Path(file).parents:
                del sys.modules[name]
        super()._run()


class WarmPython(subprocess.Popen):
    """A child process like any other; one that would run a program in Python is forked."""

    program: type[Program] = Program

    def takes(self, words: list[str]) -> bool:
        """Return whether the process that runs this program, its name and flags, is forked."""
        return True

    def _execute_child(self, args: Any, *rest: Any) -> None:
        if not (words := _program(args)) or not self.takes(words):
            super()._execute_child(args, *rest)
            return
        given = inspect.signature(super()._execute_child).bind(args, *rest).arguments
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        of_child = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        program = self.program(
            words=words,
            environment={os.fsdecode(name): os.fsdecode(value) for name, value in (given["env"] or os.environ).items()},
            folder=os.fspath(given["cwd"] or os.getcwd()),
            streams=[Stream(usual if number == -1 else number) for usual, number in enumerate(of_child)],
            new_session=given["start_new_session"],
        )
        self.pid = _forked_elsewhere(program) if multiprocessing.parent_process() is None else _forked_here(program)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in names))


def _program(args: Any) -> list[str]:
    """Return the arguments after the name of Python, or nothing for code that cannot be run here."""
    if isinstance(args, str | bytes | os.PathLike):
        return []
    python, *words = map(os.fsdecode, args)
    if words[:1] == ["-u"]:  # as a launcher starts it; the console is written line by line anyway
        del words[0]
    runs = python == sys.executable and words and (words[0] in ("-c", "-m") or words[0].endswith(".py"))
    return words if runs else []


class WarmTester(WarmPython):
    program = Tester


def _forked_here(program: Program) -> int:
    pid = os.fork()
    if not pid:
        _close_all_but(program.streams)
        program.run()
    return pid


def _close_all_but(streams: list[Stream]) -> None:
    """Close what this process inherited from its parent, as Popen does: the other end of its own input is among it,
    and a process that keeps that open does not notice that its parent has ended."""
    kept = {0, 1, 2, *(stream.number for stream in streams)}
    kept |= {multiprocessing.forkserver._forkserver._forkserver_alive_fd}  # type: ignore[attr-defined]
    kept |= {multiprocessing.resource_tracker._resource_tracker._fd}  # type: ignore[attr-defined]
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def _forked_elsewhere(program: Program) -> int:
    """Return the id of a child of this process that has nothing of it."""
    ours, theirs = multiprocessing.Pipe()
    parent = processes().Process(target=_leave_an_orphan, args=(program, theirs))
    with _one_at_a_time, _adopting_orphans():
        parent.start()
        theirs.close()
        pid = ours.recv()
        parent.join()
    ours.send("adopted")
    ours.close()
    return int(pid)


def _leave_an_orphan(program: Program, asked_by: Connection) -> None:
    if pid := os.fork():
        asked_by.send(pid)
        return
    asked_by.recv()
    asked_by.close()
    program.run()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """A process that descends from this one and loses its parent becomes a child of this one."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
