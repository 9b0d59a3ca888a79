"""Processes that begin fresh, with everything imported: nothing is left in them of the tests before."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.suite.spending import PROCESSES, spend

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess

PATIENCE = 300.0
"""Seconds until a process is killed that does not end by itself."""


def can_fork() -> bool:
    """Return whether processes may be forked from one that has everything imported. Where there is a GPU, some of these
    imports look at it, and a process that is forked after that cannot use it."""
    return sys.platform == "linux" and not any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd"))


needs_fork = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux only, and only without a GPU")


def processes() -> ForkServerContext | SpawnContext:
    """Makes them. They are forked from a process with one thread and nothing but imports in it, if possible."""
    from multiprocessing import forkserver

    spend(PROCESSES)
    if not can_fork():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.suite.preloaded"])
    with pytest.MonkeyPatch.context() as patch:  # it has no sys.path of ours, and does not report failed imports
        patch.setenv("PYTHONPATH", found_by_processes()["PYTHONPATH"])
        forkserver.ensure_running()
    return context


def outcome(process: ForkServerProcess | SpawnProcess) -> int:
    """Exit code of one that was started; it is killed when patience is at its end."""
    process.join(PATIENCE)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def console_to(file: Path) -> None:
    """The output of this process, including its C++ parts and its end by a signal, is appended to a file."""
    with file.open("a") as console:
        for stream in (1, 2):
            os.dup2(console.fileno(), stream)
    faulthandler.enable(file=sys.__stderr__)


def found_by_processes() -> dict[str, str]:
    """The environment that lets processes of a launcher import the tests' modules, in addition to their own path."""
    folders = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def group(
    count: int, folder: Path, work: Callable[..., int], *arguments: Any
) -> list[ForkServerProcess | SpawnProcess]:
    """Start `count` processes of one group, each of which runs work(*arguments) in today's environment. Each has its
    rank and the place to meet in the environment, as from a launcher, and prints into console<rank>.txt."""
    environment = group_environment(count)
    ranks = [
        processes().Process(target=_rank, args=(rank, environment, folder / f"console{rank}.txt", work, arguments))
        for rank in range(count)
    ]
    for each in ranks:
        each.start()
    return ranks


def group_environment(count: int) -> dict[str, str]:
    """Today's environment, with the size of a group and a free place to meet, as from a launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**os.environ, **{name: str(value) for name, value in group.items()}}


def told_in(folder: Path) -> str:
    return "".join(console.read_text() for console in sorted(folder.glob("console*.txt")))


def _rank(
    rank: int, environment: dict[str, str], console: Path, work: Callable[..., int], arguments: tuple[Any, ...]
) -> None:
    sys.exit(_work_as(rank, environment, console, work, arguments))


def _work_as(
    rank: int, environment: dict[str, str], console: Path, work: Callable[..., int], arguments: tuple[Any, ...]
) -> int:
    os.environ.clear()
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    console.unlink(missing_ok=True)
    console_to(console)
    return work(*arguments)


def launch(flags: list[str], program: list[str], console: Path) -> ForkServerProcess | SpawnProcess:
    """Start two processes of a program by accelerate's launcher, in today's environment. The launcher has everything
    imported, and those that it starts are forked from it."""
    one_machine = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    flags = [*flags, *one_machine, "--main_process_port=0"]
    environment = {**os.environ, **found_by_processes()}
    launcher = processes().Process(target=_launch, args=([*flags, *program], environment, console))
    launcher.start()
    return launcher


def _launch(words: list[str], environment: dict[str, str], console: Path) -> None:
    from accelerate.commands import launch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from tests.support.suite.warm_python import WarmPython  # imports this module

    if can_fork():
        subprocess_handler.Popen = WarmPython
    os.environ.clear()
    os.environ.update(environment)
    console_to(console)
    sys.argv[1:] = words
    launch.main()


class Team:
    """Processes that form one group after another: a process's one-time work, such as imports, serves all tests."""

    def __init__(self, count: int):
        pipes = [multiprocessing.Pipe() for _ in range(count)]
        self._pipes = [ours for ours, _ in pipes]
        self._ranks = [processes().Process(target=_work_on, args=(theirs,), daemon=True) for _, theirs in pipes]
        for rank, (_, theirs) in zip(self._ranks, pipes, strict=True):
            rank.start()
            theirs.close()

    def work(self, folder: Path, work: Callable[..., int], *arguments: Any) -> list[int]:
        """The results of work(*arguments) in each; their output is in console<rank>.txt."""
        environment = group_environment(len(self._ranks))
        for rank, pipe in enumerate(self._pipes):
            pipe.send((rank, environment, folder / f"console{rank}.txt", work, arguments))
        return [self._answer(*each) for each in zip(self._ranks, self._pipes, strict=True)]

    @staticmethod
    def _answer(rank: ForkServerProcess | SpawnProcess, pipe: Connection) -> int:
        with contextlib.suppress(EOFError):
            if pipe.poll(PATIENCE):
                return int(pipe.recv())
        rank.kill()
        rank.join()
        return rank.exitcode or 0

    @property
    def is_whole(self) -> bool:
        return all(rank.is_alive() for rank in self._ranks)

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.join()


def _work_on(pipe: Connection) -> None:
    """Work until the other end of the pipe is closed."""
    with contextlib.suppress(EOFError):
        while True:
            given = pipe.recv()
            try:
                status = _work_as(*given)
            except Exception:
                traceback.print_exc()
                status = 1
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            pipe.send(status)


_teams: dict[int, Team] = {}


def together(count: int, folder: Path, work: Callable[..., int], *arguments: Any) -> tuple[list[int], str]:
    """The results of work(*arguments) in each of `count` processes of one group, and their output."""
    if (team := _teams.get(count)) is None or not team.is_whole:
        if team:
            team.end()
        team = _teams[count] = Team(count)
        atexit.register(team.end)
    return team.work(folder, work, *arguments), told_in(folder)
