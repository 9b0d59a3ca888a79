"""What setup.sh and setup.bat install: the Python of the environment, and the CUDA build of PyTorch."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*"sys.exit(not"*) exit {unsupported} ;;
*perf_counter*) {loop} ;;
--version) echo "Python {name}" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip "*) echo "$*" ;;
*install_torch) PYTHONPATH={packages}:{root} exec {python} -S "$@" ;;
esac
"""
"""Instead of an interpreter: answers what setup.sh asks of one. Its only package is a pip that prints its arguments."""
INDEX = "--index-url https://download.pytorch.org/whl/"


def make(folder: Path, name: str, microseconds: int | None, supported: bool = True) -> None:
    loop = "exit 1" if microseconds is None else f"echo {microseconds} /path of/{name}"
    python = folder / name
    packages = folder.parent / "packages"
    (packages / "pip").mkdir(parents=True, exist_ok=True)
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text("import sys; print('-m pip', *sys.argv[1:])")
    words = {"packages": packages, "root": ROOT, "python": sys.executable}
    python.write_text(PYTHON.format(name=name, loop=loop, unsupported=int(not supported), **words))
    python.chmod(0o755)


def make_nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def setup(bin_folder: Path) -> list[str]:
    """Run setup.sh in a new project and return the lines that it prints."""
    root = bin_folder.parent / "project"
    root.mkdir()
    for name in ("setup.sh", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    environment = {**os.environ, "PATH": f"{bin_folder}:/usr/bin:/bin"}
    command = ["bash", "-c", f"source {root}/setup.sh"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def chosen(bin_folder: Path) -> str:
    """Return the Python that the environment is made with."""
    (made,) = [line for line in setup(bin_folder) if line.startswith("Creating ")]
    return made.rpartition("/")[2]


def test_the_environment_is_made_with_the_first_supported_python(bin_folder: Path) -> None:
    make(bin_folder, "python3", 1, supported=False)
    make(bin_folder, "python3.12", 10)
    make(bin_folder, "python3.11", 9)  # not worth leaving the user's first for
    assert chosen(bin_folder) == "python3.12"


def test_a_python_that_is_much_faster_is_preferred(bin_folder: Path) -> None:
    make(bin_folder, "python3", 10)
    make(bin_folder, "python3.11", 6)
    make(bin_folder, "python3.12", 8)
    assert chosen(bin_folder) == "python3.11"


def test_a_python_without_headers_is_not_preferred(bin_folder: Path) -> None:
    make(bin_folder, "python3", 10)
    make(bin_folder, "python3.12", None)
    assert chosen(bin_folder) == "python3"


def torch_build(bin_folder: Path) -> tuple[str, str]:
    """Return the sentence about the driver and the index of the build that is installed before the requirements."""
    make(bin_folder, "python3", 10)
    *told, requirements = [line for line in setup(bin_folder) if not line.startswith(("Creating ", "Installing the"))]
    assert "requirements.txt -e" in requirements
    installs = [line for line in told if line.startswith("-m pip install")]
    sentences = [line for line in told if line not in installs]
    assert len(installs) < 2
    assert len(sentences) < 2
    assert all(" torch==" in line for line in installs)
    return "".join(sentences), "".join(line.partition(INDEX)[2] for line in installs)


@pytest.mark.parametrize(
    ("driver", "capability", "said", "index"),
    [
        ("580.65", "12.0", "", ""),
        (
            "550.54",
            "8.9",
            "NVIDIA driver 550.54: installing PyTorch for CUDA 12.6, since CUDA 13.0 needs driver 580 or newer.",
            "cu126",
        ),
        (
            "580.65",
            "6.1",
            "NVIDIA driver 580.65: installing PyTorch for CUDA 12.6, since CUDA 13.0 does not support compute "
            "capability 6.1.",
            "cu126",
        ),
        (
            "575.64",
            "12.0",
            "NVIDIA driver 575.64 is too old: CUDA 13.0 needs driver 580 or newer. To train on the GPU, install the "
            "NVIDIA driver 580 or newer from https://www.nvidia.com/drivers and restart.",
            "",
        ),
    ],
)
def test_setup_installs_the_cuda_build_that_the_driver_and_the_gpu_run(
    driver, capability, said, index, bin_folder
) -> None:
    make_nvidia_smi(bin_folder, f"case $1 in *cap*) echo {capability} ;; *) echo NVIDIA A, {driver}, 24576 ;; esac")
    assert torch_build(bin_folder) == (said, index)


def test_without_an_nvidia_driver_the_requirements_decide_the_build(bin_folder: Path) -> None:
    assert torch_build(bin_folder) == ("", "")


def test_a_failing_nvidia_smi_is_reported_and_does_not_stop_the_installation(bin_folder: Path) -> None:
    make_nvidia_smi(bin_folder, "echo Driver/library version mismatch; exit 18")
    assert torch_build(bin_folder) == ("nvidia-smi: Driver/library version mismatch", "")


BATCH_FILES = ("setup.bat", "gui.bat")
PROGRAMS = re.compile(r'(?:"%python%"|%base%|py|python|copy|fc|call) ')
CHECKED = re.compile(r" (\|\| (goto|exit)|&& (goto|set)) ")


def commands(name: str) -> list[str]:
    """Return the lines of a batch file without comments and labels."""
    lines = (ROOT / name).read_text(encoding="ascii").splitlines()
    return [line for line in lines if line and not line.startswith((":", "rem ", "@echo "))]


@pytest.mark.parametrize("name", BATCH_FILES)
def test_batch_files_jump_to_labels_that_they_have(name: str) -> None:
    labels = set(re.findall(r"^:(\w+)$", (ROOT / name).read_text(encoding="ascii"), re.M))
    assert {target for line in commands(name) for target in re.findall(r"\bgoto (\w+)", line)} == labels


@pytest.mark.parametrize("name", BATCH_FILES)
def test_batch_files_check_every_program_that_they_start(name: str) -> None:
    unchecked = [line for line in commands(name) if PROGRAMS.search(line) and not CHECKED.search(line)]
    assert [line for line in unchecked if not line.startswith(("echo ", "set "))] == []


@pytest.mark.parametrize("name", BATCH_FILES)
def test_batch_files_work_in_folders_with_spaces_parentheses_and_ampersands(name: str) -> None:
    for line in commands(name):
        assert not line.rstrip().endswith("("), f"a path with ) ends this block: {line}"
        outside_quotes = "".join(line.split('"')[::2])
        assert not re.search(r"%(root|python|started|~dp0)", outside_quotes), line


def test_batch_files_have_the_line_ends_that_windows_needs() -> None:
    assert "*.bat text eol=crlf" in (ROOT / ".gitattributes").read_text(encoding="utf-8").splitlines()


def test_setup_supports_the_pythons_that_the_package_does() -> None:
    assert 'requires-python = ">=3.10,<3.14"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("setup.sh", "setup.bat"):
        assert "(3, 10) <= sys.version_info[:2] <= (3, 13)" in (ROOT / name).read_text(encoding="utf-8")
