"""Checks that need no torch: Python, packages, driver, compiler, disks."""

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from sd_scripts.formats.disk import format_bytes, free_bytes, same_disk
from sd_scripts.formats.words import some
from sd_scripts.machine import cpp_compiler, cuda_builds, nvidia
from sd_scripts.tools.doctor.check import REINSTALL, Check, Finding, ok, problem, skipped, warning

ROOT = Path(__file__).parents[3]
NEW_ENVIRONMENT = "delete the folder .venv and start gui.sh or gui.bat again, which recreates it"
LITTLE, TOO_LITTLE = 20e9, 1e9
"""Bytes of free disk space: a whole model with its state has about 20 GB, a LoRA less than one."""
SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = 1 << 30
"""Containers get 64 MiB by default, which a few batches of images fill."""
PIN = re.compile(r"([\w.-]+)==([^\s;]+)(?:\s*;\s*(.+))?")
MARKER = re.compile(r'(python_version|sys_platform)\s*(==|!=|>=|<)\s*"([^"]+)"')
NAMED = 4
"""Packages that a sentence names."""


def python() -> Finding:
    project = project_file("pyproject.toml").read_text(encoding="utf-8")
    (wanted,) = re.findall(r'^requires-python = "(.+)"', project, re.M)
    least, beyond = (tuple(map(int, part.split("."))) for part in re.findall(r"[\d.]+", wanted))
    found = f"Python {platform.python_version()}, {sys.executable}"
    if not least <= sys.version_info[:2] < beyond:
        return problem(f"{found}; required is {wanted}", f"install such a Python, then {NEW_ENVIRONMENT}")
    if sys.maxsize < 2**32:
        return problem(f"{found}, is a 32-bit program", f"install a 64-bit Python, then {NEW_ENVIRONMENT}")
    return ok(found)


def system() -> Finding:
    import psutil

    memory = psutil.virtual_memory().total
    return ok(f"{platform.platform()}, {os.cpu_count()} CPU cores, {memory / 2**30:.0f} GiB of main memory")


def packages() -> Finding:
    wanted = pinned(project_file("requirements.txt").read_text(encoding="utf-8"))
    missing, others = [], []
    for name, version in wanted.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if found.partition("+")[0] != version:  # 2.13.0+cu130 is a build of 2.13.0
            others.append(f"{name} {found} instead of {version}")
    if missing:
        return problem(f"Not installed: {some(missing, NAMED)}", REINSTALL)
    if others:
        return warning(f"Versions that differ from the tested ones: {some(others, NAMED)}", REINSTALL)
    return ok(f"All {len(wanted)} packages of requirements.txt have the required versions")


def project_file(name: str) -> Path:
    """Return a file of the project folder, or its copy in an installed package."""
    copy = Path(__file__).with_name(name)
    return copy if copy.exists() else ROOT / name


def pinned(requirements: str) -> dict[str, str]:
    """Return the pinned version of each package that requirements.txt names for this machine."""
    lines = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    found = {}
    for line in filter(None, lines):
        pin = PIN.fullmatch(line)
        assert pin, f"requirements.txt: '{line}' pins no version"
        if not pin[3] or _applies(pin[3]):
            found[pin[1]] = pin[2]
    return found


def _applies(marker: str) -> bool:
    """Return whether a marker such as `python_version >= "3.11"` is true here."""
    parts = MARKER.fullmatch(marker.strip())
    assert parts, f"requirements.txt: unknown marker '{marker}'"
    name, sign, value = parts.groups()
    if name == "sys_platform":
        return (sys.platform == value) == (sign == "==")
    here, there = sys.version_info[:2], tuple(map(int, value.split(".")))
    return {"==": here == there, "!=": here != there, ">=": here >= there, "<": here < there}[sign]


def driver() -> Finding:
    if not nvidia.program():
        return warning(
            "No NVIDIA driver was found, so training runs on the CPU, which is slow",
            f"if it has an NVIDIA GPU, {nvidia.UPDATE_DRIVER}",
        )
    try:
        gpus = nvidia.gpus()
    except ValueError as error:
        return problem(f"nvidia-smi: {error}", nvidia.UPDATE_DRIVER)
    if not gpus:
        return warning("The NVIDIA driver finds no GPU", "check in nvidia-smi that it lists the GPU")
    named = ", ".join(f"{gpu.name} with {gpu.bytes / 2**30:.0f} GiB" for gpu in gpus)
    choice = cuda_builds.choose(gpus[0].driver, nvidia.capabilities())
    if not choice.build:
        return problem(f"Driver {choice.driver} for {named} is too old: {choice.reason}", nvidia.UPDATE_DRIVER)
    if choice.build is cuda_builds.DEFAULT:
        return ok(f"Driver {choice.driver}: {named}")
    return ok(
        f"Driver {choice.driver}: {named}; PyTorch must be built for CUDA {choice.build.cuda}, since {choice.reason}"
    )


def compiler() -> Finding:
    found = cpp_compiler.find_compiler()
    if not found and sys.platform == "win32" and nvidia.program():
        return skipped("No C++ compiler was found; on Windows with a GPU only compile_dynamic = true needs one")
    if not found:
        return problem("No C++ compiler was found, which compile needs", cpp_compiler.NO_COMPILER)
    if not cpp_compiler.has_python_headers():
        return problem(
            f"{found}, but Python.h is missing, which compile needs",
            f"install Python's headers; on Debian and Ubuntu python{sys.version_info[0]}.{sys.version_info[1]}-dev",
        )
    return ok(f"{found} and the headers of Python")


def disk() -> Finding:
    from sd_scripts.runs.store import state_folder  # needs psutil

    here = Path.cwd()
    state = state_folder()
    folders = [here] if same_disk(here, _existing(state)) else [here, state]
    free = {folder: space for folder in folders if (space := free_bytes(folder)) is not None}
    if not free:
        return skipped("The system does not report how much disk space is free")
    found = ", ".join(f"{format_bytes(space)} free for {folder}" for folder, space in free.items())
    remedy = "free some space, or choose an output_dir on another disk"
    if min(free.values()) < TOO_LITTLE:
        return problem(found, remedy)
    if free.get(here, LITTLE) < LITTLE:
        return warning(f"{found}; a whole model with its state takes about {format_bytes(LITTLE)}", remedy)
    return ok(found)


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def shared_memory() -> Finding:
    if sys.platform != "linux":
        return skipped("Only Linux has /dev/shm")
    free, size = _space(SHARED_MEMORY)
    found = f"{SHARED_MEMORY} has {format_bytes(size)}, {format_bytes(free)} of them free"
    if min(free, size) < SMALL_SHARED_MEMORY:
        return warning(
            f"{found}; data loader processes hand over their images there",
            "set max_data_loader_n_workers = 0, or give a container more with --shm-size=8g",
        )
    return ok(found)


def _space(folder: Path) -> tuple[int, int]:
    """Return the free and all bytes of the file system of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


CHECKS = (
    Check(name="python", title="Python", find=python, remedy=NEW_ENVIRONMENT),
    Check(name="system", title="System", find=system, remedy=REINSTALL),
    Check(name="packages", title="Packages", find=packages, remedy=REINSTALL),
    Check(name="driver", title="NVIDIA driver", find=driver, remedy=nvidia.UPDATE_DRIVER),
    Check(name="compiler", title="C++ compiler", find=compiler, remedy=cpp_compiler.NO_COMPILER),
    Check(name="disk", title="Free disk", find=disk, remedy="start in a folder that you can read and write"),
    Check(name="shared_memory", title="Shared memory", find=shared_memory, remedy="set max_data_loader_n_workers = 0"),
)
