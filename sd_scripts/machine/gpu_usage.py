"""How busy, full and hot the GPUs are now, from NVIDIA's library NVML; needs no torch.

What a GPU is (name, driver, size, compute capability) comes from nvidia-smi (nvidia.py), which also works before the
packages are installed. NVML answers in well under a millisecond, often enough for every second.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
MILLI = 1e-3
"""NVML reports power in milliwatts."""


@dataclass(frozen=True, kw_only=True)
class GpuUsage:
    """One reading of a GPU; None is what this GPU or driver does not report."""

    number: int
    """As nvidia-smi counts, from 0."""
    name: str
    used: int
    """Bytes that all processes use, and the driver itself."""
    total: int
    """Bytes that the GPU has."""
    busy: float | None = None
    """Share of the last moments in which a kernel ran, 0 to 1."""
    celsius: float | None = None
    watts: float | None = None
    watt_limit: float | None = None
    processes: tuple[tuple[int, int | None], ...] = ()
    """(Process id, bytes it uses) of the processes that compute on it. Windows reports no bytes; in a container, the
    ids are the host's."""

    def used_by(self, pids: Collection[int]) -> int | None:
        """Return the bytes that these processes use; None if that is not known."""
        own = [size for pid, size in self.processes if pid in pids]
        return None if None in own else sum(size or 0 for size in own)

    def as_event(self) -> dict[str, float]:
        """Return the reading for an event of a run: shares of the whole in percent, and degrees Celsius."""
        percent = {"use": self.busy, "memory": self.used / self.total if self.total else None}
        if self.watts is not None and self.watt_limit:
            percent["power"] = self.watts / self.watt_limit
        values = {name: round(100 * share, 1) for name, share in percent.items() if share is not None}
        return values if self.celsius is None else {**values, "temperature": self.celsius}


def all_gpus() -> list[GpuUsage]:
    """Read every GPU of this machine; none without an NVIDIA driver. A GPU that cannot be read is left out."""
    nvml = _nvml()
    if nvml is None:
        return []
    readings = []
    for number in range(_asked(nvml.nvmlDeviceGetCount) or 0):
        with contextlib.suppress(nvml.NVMLError):
            readings.append(_read(nvml, nvml.nvmlDeviceGetHandleByIndex(number)))
    return readings


def gpu_by_uuid(uuid: str) -> GpuUsage | None:
    """Read the GPU with this UUID, as PyTorch names it; None if NVML does not know it."""
    nvml = _nvml()
    if nvml is None:
        return None
    with contextlib.suppress(nvml.NVMLError):
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return _read(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
    return None


@functools.cache
def _nvml() -> Any:
    """Return the library, once it is initialized; None where there is no NVIDIA driver."""
    import pynvml  # here, since every start of the page and of a run would pay for it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _read(nvml: Any, gpu: Any) -> GpuUsage:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    name = nvml.nvmlDeviceGetName(gpu)
    utilization = _asked(nvml.nvmlDeviceGetUtilizationRates, gpu)
    milliwatts = _asked(nvml.nvmlDeviceGetPowerUsage, gpu)
    limit = _asked(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
    processes = _asked(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or []
    return GpuUsage(
        number=nvml.nvmlDeviceGetIndex(gpu),
        name=name if isinstance(name, str) else name.decode(errors="replace"),
        used=int(memory.used),
        total=int(memory.total),
        busy=None if utilization is None else utilization.gpu / 100,
        celsius=_asked(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        watts=None if milliwatts is None else milliwatts * MILLI,
        watt_limit=None if limit is None else limit * MILLI,
        processes=tuple((each.pid, each.usedGpuMemory) for each in processes),
    )


def _asked(question: Callable[..., T], *about: Any) -> T | None:
    """Return the answer; None if this GPU or driver does not have it, as many lack some."""
    from pynvml import NVMLError

    try:
        return question(*about)
    except NVMLError:
        return None
