"""Readings of the GPUs: none without a driver, and each value that a GPU does not report is left out."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from sd_scripts.machine import gpu_usage
from sd_scripts.machine.gpu_usage import GpuUsage, all_gpus, gpu_by_uuid

GB = 10**9
RECORDED: dict[str, Any] = {
    "nvmlDeviceGetCount": 2,
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
    "nvmlDeviceGetIndex": 0,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 * GB, used=18 * GB, free=6 * GB),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=87, memory=60),
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetPowerUsage": 320_500,
    "nvmlDeviceGetEnforcedPowerLimit": 450_000,
    "nvmlDeviceGetComputeRunningProcesses": [
        SimpleNamespace(pid=1234, usedGpuMemory=11 * GB),
        SimpleNamespace(pid=77, usedGpuMemory=6 * GB),
    ],
}
"""What NVML answers on a machine with a GPU."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answers of the library's functions, which no machine without a GPU gives; an error is raised."""
    changed = dict(RECORDED)

    def answer(name: str, *about: Any) -> Any:
        value = changed[name]
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    for name in [*RECORDED, "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"]:
        changed.setdefault(name, 0)
        monkeypatch.setattr(pynvml, name, lambda *about, name=name: answer(name, *about))
    gpu_usage._nvml.cache_clear()
    yield changed
    gpu_usage._nvml.cache_clear()


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_usage._nvml.cache_clear()
    if gpu_usage._nvml() is None:  # the library's own error, on a machine without a GPU
        assert (all_gpus(), gpu_by_uuid("GPU-1")) == ([], None)
    for code in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNKNOWN):

        def fail(code: int = code) -> None:
            raise error(code)

        monkeypatch.setattr(pynvml, "nvmlInit", fail)
        gpu_usage._nvml.cache_clear()
        assert (all_gpus(), gpu_by_uuid("GPU-1")) == ([], None)
    gpu_usage._nvml.cache_clear()


def test_a_reading_has_what_the_driver_reports(answers: dict[str, Any]) -> None:
    first, second = all_gpus()
    assert first == second
    assert (first.used, first.total, first.busy, first.celsius) == (18 * GB, 24 * GB, 0.87, 61)
    assert (first.watts, first.watt_limit) == (320.5, 450)
    assert first.used_by({1234, 5}) == 11 * GB
    assert gpu_by_uuid("b0a1") == first
    assert first.as_event() == {"use": 87, "memory": 75, "power": 71.2, "temperature": 61}


def test_what_a_gpu_does_not_report_is_left_out(answers: dict[str, Any]) -> None:
    for name in ("UtilizationRates", "Temperature", "PowerUsage", "EnforcedPowerLimit", "ComputeRunningProcesses"):
        answers[f"nvmlDeviceGet{name}"] = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    reading = all_gpus()[0]
    assert reading == GpuUsage(number=0, name="NVIDIA GeForce RTX 4090", used=18 * GB, total=24 * GB)
    assert reading.as_event() == {"memory": 75}


def test_a_gpu_that_is_lost_is_left_out(answers: dict[str, Any]) -> None:
    answers["nvmlDeviceGetMemoryInfo"] = error(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert (all_gpus(), gpu_by_uuid("b0a1")) == ([], None)
    answers["nvmlDeviceGetCount"] = error(pynvml.NVML_ERROR_UNINITIALIZED)
    assert all_gpus() == []


def test_memory_of_a_process_that_windows_does_not_report_is_not_taken_for_none(answers: dict[str, Any]) -> None:
    answers["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=1234, usedGpuMemory=None)]
    reading = all_gpus()[0]
    assert reading.used_by({1234}) is None
    assert reading.used_by({5}) == 0
