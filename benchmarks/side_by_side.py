"""Runs that train side by side on one GPU and are timed in turn while the others are stopped.

The speed of a CPU that others share varies within minutes, so runs that follow one another cannot be compared where
steps wait for the CPU. Here all runs start together, compile and warm up; then each trains for a few steps in turn,
over and over. All of them are on the GPU, and their first steps compete for the CPU.
"""

import os
import time
from collections.abc import Callable, Mapping

from benchmarks.observed_run import ObservedRun, ObservedRunning
from sd_scripts.tools.timed_run import POLL, WARM_UP, Stopped

SETTLING = 4
"""Steps of each turn that are not timed: two of the turn before, which are reported late; one that was interrupted; and
one for which the GPU has no work queued."""


def time_in_turns(
    runs: Mapping[str, ObservedRunning], steps: int, turns: int, *, failed: Callable[[str, Stopped], object]
) -> dict[str, ObservedRun]:
    """Time `steps` steps of each run in this many turns, and end the runs. `failed` is called for runs that end
    early."""
    left = dict(runs)
    try:
        _warm_up(left, failed)
        for turn in range(turns):
            timed = steps * (turn + 1) // turns - steps * turn // turns
            for name in sorted(left, reverse=turn % 2 == 1, key=list(runs).index):
                if not _takes_turn(left[name], timed):
                    _drop(left, name, failed)
    finally:
        for running in runs.values():
            running.end()
    return {name: running.run for name, running in left.items()}


def supported() -> bool:
    """Return whether this system can stop a run for a while."""
    return os.name == "posix"


def _warm_up(left: dict[str, ObservedRunning], failed: Callable[[str, Stopped], object]) -> None:
    """Wait until each run has done its first steps; stop those that have."""
    waiting = set(left)
    while waiting:
        time.sleep(POLL)
        for name in sorted(waiting):
            running = left[name]
            running.look()
            if running.ended:
                _drop(left, name, failed)
            elif running.done >= WARM_UP:
                running.pause()
                running.look()
                running.run.left_out.update(range(WARM_UP, running.done))
            else:
                continue
            waiting.remove(name)


def _takes_turn(running: ObservedRunning, timed: int) -> bool:
    """Let a run train until this many steps are timed. Return False if it ends."""
    running.look()
    first = running.done
    cpu: tuple[float, int] | None = None
    running.resume()
    while running.done < first + SETTLING + timed:
        if running.ended:
            return False
        time.sleep(POLL)
        running.look()
        if running.done >= first + SETTLING:
            running.look_at_gpu()
            cpu = cpu or (running.cpu_seconds(), running.done)
    seconds, done = running.run.cpu
    if cpu:
        running.run.cpu = seconds + running.cpu_seconds() - cpu[0], done + running.done - cpu[1]
    running.pause()
    running.run.left_out.update(range(first, first + SETTLING))
    return True


def _drop(left: dict[str, ObservedRunning], name: str, failed: Callable[[str, Stopped], object]) -> None:
    running = left.pop(name)
    running.look()
    failed(name, Stopped(running.run, running.console()))
