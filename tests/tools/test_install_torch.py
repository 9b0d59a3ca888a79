"""Which build of PyTorch setup installs, and its sentence about the driver."""

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from sd_scripts.machine import nvidia
from sd_scripts.tools import install_torch

INDEX = "--index-url https://download.pytorch.org/whl/"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="programs are scripts of sh")


def make_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def make_nvidia_smi(folder: Path, driver: str, capability: str) -> None:
    gpu = f"case $1 in *compute_cap*) echo {capability} ;; *) echo NVIDIA A, {driver}, 24576 ;; esac"
    make_program(folder / "nvidia-smi", gpu)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Install PyTorch on a system; return the arguments that Python gets."""
    python, asked = tmp_path / "python", tmp_path / "asked"
    make_program(python, f"echo $* >{asked}")
    asked.touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(system: str) -> str:
        monkeypatch.setattr(install_torch, "sys", SimpleNamespace(platform=system, executable=str(python)))
        assert install_torch.main() == 0
        return asked.read_text()

    return install


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("driver", "capability", "reported", "index"),
    [
        ("580.65", "12.0", "", ""),
        (
            "550.54",
            "8.9",
            "NVIDIA driver 550.54: installing PyTorch for CUDA 12.6, since CUDA 13.0 needs driver 580 or newer.\n",
            "cu126",
        ),
        (
            "580.65",
            "6.1",
            "NVIDIA driver 580.65: installing PyTorch for CUDA 12.6, since CUDA 13.0 does not support compute "
            "capability 6.1.\n",
            "cu126",
        ),
        (
            "575.64",
            "12.0",
            "NVIDIA driver 575.64 is too old: CUDA 13.0 needs driver 580 or newer. To train on the GPU, install the "
            "NVIDIA driver 580 or newer from https://www.nvidia.com/drivers and restart.\n",
            "",
        ),
    ],
)
def test_the_driver_and_the_gpu_decide_the_build(
    driver, capability, reported, index, installed, tmp_path, capsys
) -> None:
    make_nvidia_smi(tmp_path, driver, capability)
    command = installed("linux")
    assert capsys.readouterr().out == reported
    assert command.partition(INDEX)[2].strip() == index
    assert command.startswith(f"-m pip install --disable-pip-version-check {install_torch.pin()} " if index else "")


@pytest.mark.usefixtures("without_torch")
def test_on_windows_the_default_build_comes_from_pytorchs_index_too(installed, tmp_path) -> None:
    make_nvidia_smi(tmp_path, "590.48", "8.9")
    assert installed("win32").endswith(f"{install_torch.pin()} {INDEX}cu130\n")


@pytest.mark.usefixtures("without_torch")
def test_a_failing_nvidia_smi_is_reported_and_the_default_build_installed(installed, tmp_path, capsys) -> None:
    make_program(tmp_path / "nvidia-smi", "echo Driver/library version mismatch; exit 18")
    assert installed("linux") == ""
    assert capsys.readouterr().out == "nvidia-smi: Driver/library version mismatch\n"


@pytest.mark.usefixtures("without_torch")
def test_without_an_nvidia_driver_the_requirements_decide(installed, monkeypatch) -> None:
    monkeypatch.setattr(nvidia, "program", lambda: None)
    assert installed("win32") == ""


def test_a_pinned_pytorch_that_is_installed_is_left_alone(installed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: f"{install_torch.pin().partition('==')[2]}+cu132")
    make_nvidia_smi(tmp_path, "550.54", "8.9")
    assert installed("linux") == ""
