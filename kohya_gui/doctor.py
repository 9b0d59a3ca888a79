"""The checks of this machine, which run as a process: for `python gui.py --doctor` and for the page.

Only the standard library: they are for environments in which something is missing or broken.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "sd_scripts.tools.doctor"


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", PROGRAM, *flags]


def environment() -> dict[str, str]:
    """Return our environment, in which the program is found from every folder."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(flags: Sequence[str]) -> int:
    """Run the checks in this terminal and return their exit code."""
    try:
        return subprocess.run(command(*flags), env=environment(), check=False).returncode
    except KeyboardInterrupt:
        return 130
