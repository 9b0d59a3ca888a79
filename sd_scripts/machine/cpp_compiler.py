"""The C++ compiler of this machine, which torch.compile calls; found without torch."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NO_COMPILER = "install a C++ compiler (g++; on Windows the Visual Studio Build Tools)"


def find_compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile would call, or None."""
    named = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or named)


def has_msvc() -> bool:
    """Return whether the environment is one of Visual Studio's."""
    return shutil.which("cl") is not None or bool(os.environ.get("VCINSTALLDIR"))


def has_python_headers() -> bool:
    """Return whether compiled code can include Python.h, as the launchers of kernels do."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()
