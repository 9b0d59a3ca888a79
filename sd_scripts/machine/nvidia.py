"""nvidia-smi's report about GPUs and their driver; needs no torch."""

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

CPU = "cpu"
LEAST_DRIVER = 580
"""The first driver for CUDA 13, for which PyTorch is built by default."""
UPDATE_DRIVER = f"install the NVIDIA driver {LEAST_DRIVER} or newer from https://www.nvidia.com/drivers and restart"
ALSO_HERE = ("/usr/lib/wsl/lib", os.path.expandvars(r"%ProgramFiles%\NVIDIA Corporation\NVSMI"))
"""Folders that have nvidia-smi without being in PATH."""
PATIENCE = 30.0
_FIELDS = ("name", "driver_version", "memory.total")
Capability = tuple[int, int]
"""A GPU's compute capability, such as (8, 9)."""


@dataclass(frozen=True)
class Gpu:
    name: str
    driver: str = ""
    bytes: int = 0
    """0: not known."""


def program() -> str | None:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(ALSO_HERE))


def query(*fields: str, gpu: str = "") -> list[list[str]]:
    """Return the values of nvidia-smi's fields for each GPU, or for the one of this number; none without nvidia-smi.

    Raises ValueError with nvidia-smi's own words if it fails.
    """
    if not (path := program()):
        return []
    command = [path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    if gpu:
        command += ["-i", gpu]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"no answer after {PATIENCE:.0f} s") from error
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        raise ValueError(lines[0] if lines else f"ended with exit code {done.returncode}")
    rows = [line.rsplit(",", len(fields) - 1) for line in lines]  # a name may have a comma
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def gpus() -> list[Gpu]:
    """Return the GPUs that the driver finds. Raises ValueError as `query` does."""
    return [_gpu(*row) for row in query(*_FIELDS)]


def capabilities() -> list[Capability]:
    """Return the GPUs' compute capabilities; none if nvidia-smi is too old to know them."""
    rows: list[list[str]] = []
    with contextlib.suppress(ValueError):
        rows = query("compute_cap")
    numbers = (re.fullmatch(r"(\d+)\.(\d+)", value) for (value,) in rows)
    return [(int(number[1]), int(number[2])) for number in numbers if number]


def query_first(*fields: str) -> list[str]:
    """Return the values of nvidia-smi's fields for the first GPU that a run may use; none without one."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    with contextlib.suppress(OSError, ValueError):
        return next(iter(query(*fields, gpu=number)), [])
    return []


def first_gpu() -> Gpu:
    """Return the first GPU that a run may use; without one, its name is "cpu"."""
    row = query_first(*_FIELDS)
    return _gpu(*row) if row else Gpu(CPU)


def _gpu(name: str, driver: str, mib: str) -> Gpu:
    known = mib.replace(".", "").isdecimal()  # it may be [N/A]
    return Gpu(name, driver, int(float(mib)) * 2**20 if known else 0)
