"""Install the pinned PyTorch in the CUDA build that runs here; setup.sh and setup.bat call this first.

Does nothing where the requirements install the right build by themselves: without an NVIDIA driver, and on Linux with a
driver for CUDA 13. A pinned PyTorch that is already installed is left alone, whatever its build.
"""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from sd_scripts.machine import nvidia
from sd_scripts.machine.cuda_builds import DEFAULT, Choice, CudaBuild, choose_here

REQUIREMENTS = Path(__file__).parents[2] / "requirements.txt"


def pin() -> str:
    (line,) = re.findall(r"^torch==[^\s;]+", REQUIREMENTS.read_text(encoding="utf-8"), re.M)
    return str(line)


def is_installed(requirement: str) -> bool:
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    return f"torch=={installed.partition('+')[0]}" == requirement  # 2.13.0+cu126 is a build of 2.13.0


def sentence(choice: Choice) -> str:
    """Return a sentence on how the driver changes the installation; empty for the default build."""
    if choice.build is DEFAULT:
        return ""
    if choice.build:
        return f"NVIDIA driver {choice.driver}: installing PyTorch for CUDA {choice.build.cuda}, since {choice.reason}."
    return f"NVIDIA driver {choice.driver} is too old: {choice.reason}. To train on the GPU, {nvidia.UPDATE_DRIVER}."


def build_to_install() -> CudaBuild:
    try:
        choice = choose_here()
    except ValueError as error:
        print(f"nvidia-smi: {error}", flush=True)
        return DEFAULT
    if choice and (words := sentence(choice)):
        print(words, flush=True)
    return (choice and choice.build) or DEFAULT


def main() -> int:
    requirement = pin()
    if is_installed(requirement) or not nvidia.program():
        return 0
    build = build_to_install()
    if build is DEFAULT and sys.platform != "win32":  # PyPI's PyTorch for Windows has no CUDA
        return 0
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", requirement]
    return subprocess.run([*command, "--index-url", build.index], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
