"""What decides whether compiled code can be used here: versions, system and CPU features, found without torch."""

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sd_scripts.machine import nvidia

CPU_INFO = Path("/proc/cpuinfo")
CAPABILITY = "ATEN_CPU_CAPABILITY"
INSTRUCTIONS = re.compile(
    r"(sse|ssse|avx|fma|f16c|bmi|amx|aes|vaes|sha|pclmul|vpclmul|gfni|xsave|3dnow|movdir|clflushopt|cldemote|prefetch)"
    r"|(pni|cx16|popcnt|abm|lzcnt|movbe|adx|rdrnd|rdrand|rdseed|fsgsbase|lahf_lm|clwb|clzero|tbm|xop|serialize|waitpkg)$"
)
"""The flags of an x86 CPU that name instructions which a compiler may choose; others name bugs, or kernel features."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Compiled code may be used where all of these are the same."""

    torch: str
    triton: str
    """Empty without Triton."""
    python: str
    system: str
    cpu: tuple[str, ...]
    """Instruction sets, sorted; where the system does not list them, the name of the CPU."""
    gpus: tuple[str, ...] = ()
    """Kinds of GPUs with their capability. The compiler distinguishes them itself, so a folder may contain several."""

    def key(self) -> str:
        """Return the name of the cache folder, which code for any GPU shares."""
        same = {**asdict(self), "gpus": ()}
        digest = sha256(repr(sorted(same.items())).encode()).hexdigest()[:12]
        return f"torch-{self.torch}-{digest}"

    def differences(self, other: "Fingerprint") -> list[str]:
        """Return the reasons why code compiled for `other` cannot be used here, one phrase for each."""
        versions = {"PyTorch": (other.torch, self.torch), "Triton": (other.triton, self.triton)}
        versions |= {"Python": (other.python, self.python), "system": (other.system, self.system)}
        differing = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
        found = [f"{name} {there or 'none'}, here {here or 'none'}" for name, (there, here) in differing.items()]
        if self.cpu != other.cpu:
            found.append(_cpu_difference(other.cpu, self.cpu))
        if (self.gpus or other.gpus) and not set(self.gpus) & set(other.gpus):
            found.append(f"GPU {', '.join(other.gpus) or 'none'}, here {', '.join(self.gpus) or 'none'}")
        return found


def read_fingerprint(entry: object) -> Fingerprint:
    """Return the fingerprint of a JSON object. Raises ValueError if it is none."""
    if not isinstance(entry, Mapping):
        raise ValueError("no fingerprint")
    texts = {name: entry.get(name) for name in ("torch", "triton", "python", "system")}
    lists = {name: entry.get(name) for name in ("cpu", "gpus")}
    words = [*texts.values(), *(word for each in lists.values() if isinstance(each, list) for word in each)]
    if not all(isinstance(each, list) for each in lists.values()) or not all(isinstance(word, str) for word in words):
        raise ValueError("no fingerprint")
    read: dict[str, Any] = {**texts, **{name: tuple(each or ()) for name, each in lists.items()}}
    return Fingerprint(**read)


def fingerprint(*, with_gpus: bool = False) -> Fingerprint:
    """Return the fingerprint of this machine. Its GPUs are asked for only if wanted, which takes a moment."""
    return Fingerprint(
        torch=torch_version(),
        triton=_version("triton") or _version("triton-windows"),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        system=f"{platform.system()} {platform.machine()}",
        cpu=(*cpu_features(), *_capability()),
        gpus=_gpus() if with_gpus else (),
    )


@cache
def torch_version() -> str:
    """Return the version of the installed PyTorch with its build, such as 2.13.0+cu130, without importing it; empty if
    there is none."""
    spec = find_spec("torch")
    with contextlib.suppress(OSError):  # the metadata of some builds leaves out +cu130
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8") if spec and spec.origin else ""
        if found := re.search(r"^__version__ = '([^']+)'", text, re.M):
            return found[1]
    return _version("torch")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def cpu_features() -> tuple[str, ...]:
    """Return the instruction sets of this CPU, sorted; its name where the system does not list them."""
    with contextlib.suppress(OSError):
        if found := features_in(CPU_INFO.read_text(encoding="utf-8", errors="replace")):
            return found
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return (subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip(),)
    return (platform.processor() or platform.machine(),)


def _capability() -> tuple[str, ...]:
    """Return the variable that limits the instructions which PyTorch and inductor choose, if it is set."""
    limit = os.environ.get(CAPABILITY)
    return (f"{CAPABILITY}={limit}",) if limit else ()


def features_in(cpu_info: str) -> tuple[str, ...]:
    """Return the instruction sets that the text of /proc/cpuinfo names."""
    named = re.search(r"^(flags|Features)\s*:(.*)$", cpu_info, re.M)
    words = named[2].split() if named else []
    return tuple(sorted({word for word in words if named and (named[1] == "Features" or INSTRUCTIONS.match(word))}))


def _cpu_difference(there: tuple[str, ...], here: tuple[str, ...]) -> str:
    more = sorted({*there} - {*here})
    less = sorted({*here} - {*there})
    parts = [f"{which} {', '.join(names[:6])}" for which, names in (("with", more), ("without", less)) if names]
    return f"a different CPU,  {' and '.join(parts)}"


def _gpus() -> tuple[str, ...]:
    with contextlib.suppress(OSError, ValueError):
        return tuple(sorted({" ".join(row) for row in nvidia.query("name", "compute_cap")}))
    return ()
