"""setup.sh makes the environment and installs into it; setup.bat and gui.bat by the rules of cmd."""

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
*Python.h*) {path} ;;
*process_time*) echo {microseconds} ;;
--version) echo "Python {name}" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m "*) echo "$*" ;;
esac
"""
"""Instead of an interpreter: answers what setup.sh asks of one."""


def make(folder: Path, name: str, microseconds: int | str | None, supported: bool = True) -> None:
    path = "exit 1" if microseconds is None else 'echo "$0"'
    python = folder / name
    python.write_text(PYTHON.format(name=name, path=path, microseconds=microseconds, unsupported=int(not supported)))
    python.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def setup(bin_folder: Path, then: str = "") -> list[str]:
    """Run setup.sh in a new project, and then a command of its shell; return the lines that they print."""
    root = bin_folder.parent / "project"
    root.mkdir(exist_ok=True)
    for name in ("setup.sh", "requirements.txt", "requirements-no-deps.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    environment = {**os.environ, "PATH": f"{bin_folder}:/usr/bin:/bin"}
    command = ["bash", "-c", f"source {root}/setup.sh; {then}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def chosen(bin_folder: Path) -> str:
    """Return the Python that the environment is made with."""
    (made,) = [line for line in setup(bin_folder) if line.startswith("Creating ")]
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


def test_a_python_is_judged_by_its_fastest_moment(bin_folder: Path) -> None:
    make(bin_folder, "python3", 10)
    make(bin_folder, "python3.12", "$(if mkdir $0-seen 2>/dev/null; then echo 90; else echo 6; fi)")
    assert chosen(bin_folder) == "python3.12"


def test_the_speed_of_this_python_is_measured(bin_folder: Path) -> None:
    make(bin_folder, "python3", 10)
    *_, microseconds = setup(bin_folder, f"measure {sys.executable}")
    assert int(microseconds) > 0


def test_pytorch_is_installed_before_what_else_is_required(bin_folder: Path) -> None:
    environment = bin_folder.parent / "project" / ".venv" / "bin"
    environment.mkdir(parents=True)
    make(environment, "python", 10)
    *_, first, second, third = setup(bin_folder)
    assert first == "-m sd_scripts.tools.install_torch"
    assert "-r" in second.split()
    assert "--no-deps" in third.split()


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
