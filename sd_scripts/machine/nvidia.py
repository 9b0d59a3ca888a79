"""What nvidia-smi says about the GPU that a run uses; needs no torch."""

import contextlib
import os
import subprocess
from dataclasses import dataclass

CPU = "cpu"
PATIENCE = 10.0


@dataclass(frozen=True)
class Gpu:
    """The first GPU that a run may use; without one its name is "cpu"."""

    name: str
    driver: str = ""
    bytes: int = 0


def query(fields: str) -> list[str]:
    """Return the values of nvidia-smi's fields, which are separated by commas; none without a GPU."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", number]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return [value.strip() for value in done.stdout.strip().split(",")]
    return []


def first_gpu() -> Gpu:
    found = query("name,driver_version,memory.total")
    if len(found) != 3:
        return Gpu(CPU)
    name, driver, mib = found
    return Gpu(name, driver, int(float(mib)) * 2**20 if mib.replace(".", "").isdecimal() else 0)
