"""The demo runs as a process: it imports torch, which the GUI never does."""

import os
import sys
from collections.abc import Sequence

from kohya_gui.doctor import environment
from sd_scripts.runs import process

PROGRAM = "sd_scripts.demo"


def run(flags: Sequence[str]) -> int:
    """Train on a miniature in this terminal, in place of this process where that is possible, so that what stops it
    reaches the training, which then saves; else return the exit code."""
    command = [sys.executable, "-m", PROGRAM, *flags]
    if os.name == "posix":
        os.execve(command[0], command, environment())
    return process.run_in_terminal(command, environment())
