"""Processes that begin fresh, with everything imported: nothing is left in them of the tests before."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spending import PROCESSES, spend

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.context import ForkServerContext, ForkServerProcess

PATIENCE = 300.0
"""Seconds until a process is killed that does not end by itself."""


def processes() -> ForkServerContext:
    """Makes them. They are forked from a process with one thread and nothing but imports in it."""
    from multiprocessing import forkserver

    spend(PROCESSES)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as patch:  # it has no sys.path of ours, and does not tell what it cannot import
        patch.setenv("PYTHONPATH", found_by_processes()["PYTHONPATH"])
        forkserver.ensure_running()
    return context


def outcome(process: ForkServerProcess) -> int:
    """Exit code of one that was started; it is killed when patience is at its end."""
    process.join(PATIENCE)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def console_to(file: Path) -> None:
    """What this process says, its C++ parts and its end by a signal included, is added to a file."""
    with file.open("a") as console:
        for stream in (1, 2):
            os.dup2(console.fileno(), stream)
    faulthandler.enable(file=sys.__stderr__)


def found_by_processes() -> dict[str, str]:
    """The environment that lets processes of a launcher import the tests' modules, beside what they find anyway."""
    folders = [*map(str, Path(__file__).parents[:2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def group(count: int, folder: Path, work: Callable[..., int], *arguments: Any) -> list[ForkServerProcess]:
    """Start `count` processes of one group, each of which runs work(*arguments) in today's environment. Each has its
    rank and the place to meet in the environment, as from a launcher, and tells into console<rank>.txt."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in group.items()}}
    ranks = [
        processes().Process(target=_rank, args=(rank, environment, folder / f"console{rank}.txt", work, arguments))
        for rank in range(count)
    ]
    for each in ranks:
        each.start()
    return ranks


def together(count: int, folder: Path, work: Callable[..., int], *arguments: Any) -> tuple[list[int], str]:
    """Exit codes of such a group, and what all of it told."""
    codes = [outcome(each) for each in group(count, folder, work, *arguments)]
    return codes, told_in(folder)


def told_in(folder: Path) -> str:
    return "".join(console.read_text() for console in sorted(folder.glob("console*.txt")))


def _rank(
    rank: int, environment: dict[str, str], console: Path, work: Callable[..., int], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    console.unlink(missing_ok=True)
    console_to(console)
    sys.exit(work(*arguments))
