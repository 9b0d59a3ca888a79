"""The GPU memory of a run: the peak of each phase, and whether the driver moves it to main memory."""

from __future__ import annotations

import platform
import statistics
import sys
from collections import defaultdict, deque

import torch

from sd_scripts.machine.gpu_usage import gpu_by_uuid
from sd_scripts.planning.memory import CONTEXT, GIB

NEARLY_FULL = 0.92
"""Share of the GPU's memory that PyTorch has reserved, from which the driver may move some of it."""
SEVERAL_TIMES = 3.0
"""How many times slower steps of a shape have to become."""
RECENT = 5
"""Steps of a shape in a median."""


def limit_gpu_memory(device: torch.device, gib: float | None) -> None:
    """Let this process use at most `gib` GiB of the GPU. PyTorch limits only what it allocates itself, so the memory of
    CUDA and its libraries is estimated and subtracted."""
    if gib is None or device.type != "cuda":
        return
    number = torch.cuda.current_device() if device.index is None else device.index
    share = (gib * GIB - CONTEXT) / torch.cuda.get_device_properties(number).total_memory
    torch.cuda.set_per_process_memory_fraction(min(share, 1.0), number)


class DeviceMemory:
    """Peaks of a run's GPU memory in bytes; all are 0 on other devices."""

    def __init__(self, device: torch.device):
        self._device = device if device.type == "cuda" else None
        self._earlier = 0

    def next_phase(self) -> int:
        """Return the peak of all tensors since the last call, and reset it."""
        peak = self.phase_peak()
        self._earlier = max(self._earlier, peak)
        if self._device:
            torch.cuda.reset_peak_memory_stats(self._device)
        return peak

    def phase_peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device else 0

    def peak(self) -> int:
        """Return the peak of the run."""
        return max(self._earlier, self.phase_peak())

    def reserved(self) -> int:
        """Return PyTorch's reserved memory, tensors and free blocks alike."""
        return torch.cuda.memory_reserved(self._device) if self._device else 0

    def peak_reserved(self) -> int:
        """Return the peak of PyTorch's reserved memory since the phase began."""
        return torch.cuda.max_memory_reserved(self._device) if self._device else 0

    def size(self) -> int:
        """Return the memory that the GPU has."""
        return torch.cuda.get_device_properties(self._device).total_memory if self._device else 0

    def readings(self) -> dict[str, float]:
        """Return how busy, full and hot the GPU is, and what PyTorch has beyond its size, in percent and degrees
        Celsius; empty without an NVIDIA driver."""
        if self._device is None:
            return {}
        usage = gpu_by_uuid(str(torch.cuda.get_device_properties(self._device).uuid))
        values = usage.as_event() if usage else {}
        beyond = self.reserved() / self.size() - 1
        return {**values, "spilled": round(100 * beyond, 1)} if beyond > 0 else values


def driver_moves_memory() -> bool:
    """Return whether the driver may move GPU memory to main memory without saying so: on Windows and WSL."""
    return sys.platform == "win32" or "microsoft" in platform.uname().release.lower()


class SpillWatch:
    """Notices that the driver has moved GPU memory to main memory, where every step takes several times as long."""

    def __init__(self, size: int):
        """`size`: bytes of the GPU's memory."""
        self._size = size
        self._fastest: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def step(self, shape: str, seconds: float, reserved: int) -> str:
        """Take a step of a shape and the bytes that are reserved; return a warning, or "" if there is none."""
        recent = self._recent[shape]
        recent.append(seconds)
        if reserved > self._size:
            return self._warning(reserved, "which is more than it has")
        if len(recent) < RECENT:
            return ""
        now = statistics.median(recent)
        before = self._fastest[shape] = min(self._fastest.get(shape, now), now)
        if reserved < NEARLY_FULL * self._size or now < SEVERAL_TIMES * before:
            return ""
        return self._warning(reserved, f"and steps take {now / before:.1f} times as long as before")

    def _warning(self, reserved: int, why: str) -> str:
        return (
            f"GPU memory: PyTorch has reserved {reserved / GIB:.1f} of {self._size / GIB:.1f} GiB, {why}. The driver "
            "has probably moved a part to main memory. Use less memory (gradient_checkpointing, blocks_to_swap, a "
            "smaller train_batch_size or resolution). To get an error instead of slow steps, choose Prefer No Sysmem "
            "Fallback for CUDA - Sysmem Fallback Policy in the NVIDIA Control Panel"
        )
