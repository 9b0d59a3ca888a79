"""Versions and packages agree wherever they are written, and users install no package that only developers need."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(name: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-r ")]


def installed_on(required: list[Requirement], python: str, system: str) -> dict[str, Requirement]:
    here = {"python_version": python, "sys_platform": system}
    return {each.name: each for each in required if not each.marker or each.marker.evaluate(here)}


@pytest.mark.parametrize("system", ["linux", "win32"])
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_each_pin_is_within_the_range_of_pyproject(python: str, system: str) -> None:
    pins = installed_on(requirements("requirements.txt"), python, system)
    ranges = installed_on([Requirement(line) for line in PROJECT["dependencies"]], python, system)
    assert pins.keys() == ranges.keys()
    outside = {
        name: f"{pin.specifier} is not within {ranges[name].specifier}"
        for name, pin in pins.items()
        for (specifier,) in [pin.specifier]
        if not ranges[name].specifier.contains(specifier.version)
    }
    assert outside == {}


def test_development_adds_to_what_users_install() -> None:
    assert "-r requirements.txt" in (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    users = {each.name for each in requirements("requirements.txt")}
    assert users.isdisjoint(each.name for each in requirements("requirements-dev.txt"))


def test_every_requirement_is_pinned() -> None:
    every = [each for file in ROOT.glob("requirements*.txt") for each in requirements(file.name)]
    assert [str(each) for each in every if [part.operator for part in each.specifier] != ["=="]] == []


def test_the_hooks_before_a_commit_use_the_same_ruff() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pins = {str(each) for each in requirements("requirements-dev.txt") if each.name == "ruff"}
    assert set(re.findall(r"\bruff==[^\],\s]+", hooks)) == pins


def test_the_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[:2] == ["Unreleased", PROJECT["version"]]


@pytest.mark.skipif(os.name != "posix", reason="setup.sh is for bash")
def test_users_install_the_project_without_the_packages_of_development(tmp_path: Path) -> None:
    for name in ("setup.sh", "requirements.txt", "requirements-dev.txt", "requirements-no-deps.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$*" >>"$0.log"\n')
    python.chmod(0o755)

    def installed(*arguments: str) -> list[str]:
        """Return the packages that pip is asked to install when setup.sh runs."""
        log = python.with_name("python.log")
        log.unlink(missing_ok=True)
        subprocess.run(["bash", str(tmp_path / "setup.sh"), *arguments], check=True, capture_output=True)
        pip = (
            line.partition("-m pip install --disable-pip-version-check ")[2] for line in log.read_text().splitlines()
        )
        return [line.replace(f"{tmp_path}", ".") for line in pip if line]

    assert installed("requirements.txt") == ["-r ./requirements.txt -e .", "--no-deps -r ./requirements-no-deps.txt"]
    assert installed() == []
    assert installed("requirements-dev.txt") == ["-r ./requirements-dev.txt"]
    with (tmp_path / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    assert installed("requirements-dev.txt") == [
        "-r ./requirements.txt -e .",
        "--no-deps -r ./requirements-no-deps.txt",
    ]
