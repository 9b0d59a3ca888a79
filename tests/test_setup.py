"""Which Python the project's environment is made with."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*"sys.exit(not"*) exit {unsupported} ;;
*perf_counter*) {loop} ;;
--version) echo "Python {name}" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""
"""Instead of an interpreter: answers what setup.sh asks of one."""


def make(folder: Path, name: str, microseconds: int | None, supported: bool = True) -> None:
    loop = "exit 1" if microseconds is None else f"echo {microseconds} /path of/{name}"
    python = folder / name
    python.write_text(PYTHON.format(name=name, loop=loop, unsupported=int(not supported)))
    python.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def chosen(bin_folder: Path) -> str:
    """The Python with which the script reports that it creates the environment."""
    root = bin_folder.parent / "project"
    root.mkdir()
    for name in ("setup.sh", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    environment = {**os.environ, "PATH": f"{bin_folder}:/usr/bin:/bin"}
    command = ["bash", "-c", f"source {root}/setup.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (made,) = [line for line in done.stdout.splitlines() if line.startswith("Creating ")]
    return made.rpartition("/")[2]


def test_the_environment_is_created_with_the_first_supported_python(bin_folder: Path) -> None:
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
