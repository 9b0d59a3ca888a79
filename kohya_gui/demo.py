"""The demo runs as a process: it imports torch, which the GUI never does."""

import os
import subprocess
import sys
from collections.abc import Sequence

from kohya_gui.doctor import environment

PROGRAM = "sd_scripts.demo"


def run(flags: Sequence[str]) -> int:
    """Train on a miniature in this terminal, in place of this process where that is possible, so that what stops it
    reaches the training, which then saves; else return the exit code."""
    command = [sys.executable, "-m", PROGRAM, *flags]
    if os.name == "posix":
        os.execve(command[0], command, environment())
    with subprocess.Popen(command, env=environment()) as training:
        while True:
            try:
                return training.wait()
            except KeyboardInterrupt:  # the training was told, too
                continue
