"""The demo runs as a process: it imports torch, which the GUI never does."""

import subprocess
import sys
from collections.abc import Sequence

from kohya_gui.doctor import environment

PROGRAM = "sd_scripts.demo"


def run(flags: Sequence[str]) -> int:
    """Train on a miniature in this terminal and return the exit code."""
    try:
        return subprocess.run([sys.executable, "-m", PROGRAM, *flags], env=environment(), check=False).returncode
    except KeyboardInterrupt:
        return 130
