"""What nvidia-smi says about GPUs and their driver; needs no torch."""

import os
import shutil
import subprocess
from dataclasses import dataclass

LEAST_DRIVER = 580
"""The first driver for CUDA 13, with which PyTorch is built."""
UPDATE_DRIVER = f"install the NVIDIA driver {LEAST_DRIVER} or newer from https://www.nvidia.com/drivers and restart"
ALSO_HERE = ("/usr/lib/wsl/lib", os.path.expandvars(r"%ProgramFiles%\NVIDIA Corporation\NVSMI"))
"""Folders that have nvidia-smi without being in PATH."""
QUERY = ("name", "driver_version", "memory.total")
PATIENCE = 30.0


@dataclass(frozen=True)
class Gpu:
    name: str
    driver: str
    memory: float
    """In MiB."""


def program() -> str | None:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(ALSO_HERE))


def gpus() -> list[Gpu]:
    """Return the GPUs that the driver finds. Raises ValueError with nvidia-smi's own words if it fails."""
    if not (found := program()):
        return []
    command = [found, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"no answer after {PATIENCE:.0f} s") from error
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        raise ValueError(lines[0] if lines else f"ended with exit code {done.returncode}")
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in lines if line.count(",") >= 2]
    return [Gpu(name, driver, _number(memory)) for name, driver, memory in rows]


def _number(text: str) -> float:
    """Return a number of nvidia-smi, which may be [N/A]."""
    try:
        return float(text)
    except ValueError:
        return 0.0
