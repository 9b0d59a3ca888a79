"""The command that starts a training script: the script itself or, where only accelerate knows how, `accelerate
launch`."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sd_scripts.formats.words import shell_words
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.settings.launching.direct_start import direct_environment


class Start(NamedTuple):
    argv: list[str]
    environment: dict[str, str]
    """Added to the process's own."""


def processes_of(launch: LaunchOptions | None, slurm: SlurmOptions | None) -> int:
    """Return the number of processes that train together."""
    if slurm and slurm.where == "slurm":
        return slurm.processes
    return launch.num_processes if launch else 1


def start_of(script: Sequence[str], launch: LaunchOptions, mixed_precision: str, on_cpu: bool) -> Start:
    """Return how to start a script with its flags; `on_cpu`: whether there is no GPU."""
    direct = direct_environment(launch, mixed_precision, on_cpu)
    if direct is not None:
        return Start([sys.executable, *script], direct)
    # accelerate's own --cpu would silently run one process
    environment = {"ACCELERATE_USE_CPU": "true"} if on_cpu and launch.num_processes > 1 else {}
    return Start(accelerated(script, launch, mixed_precision), environment)


def accelerated(script: Sequence[str], launch: LaunchOptions, mixed_precision: str) -> list[str]:
    """Return the command that starts a script through `accelerate launch`."""
    return [*accelerate_launch(), *_accelerate_flags(launch, mixed_precision), *script]


def sees_no_gpu() -> bool:
    """Return whether no NVIDIA or AMD GPU is found; checked without torch, whose import takes seconds."""
    if sys.platform == "darwin":
        return False
    devices = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
    return not (shutil.which("nvidia-smi") or any(device.exists() for device in devices))


def accelerate_launch() -> list[str]:
    """Return `accelerate launch` of the running Python, whatever comes first on the PATH."""
    program = Path(sys.executable).with_name("accelerate.exe" if os.name == "nt" else "accelerate")
    return [str(program), "launch"] if program.exists() else [sys.executable, "-m", "accelerate.commands.launch"]


def _accelerate_flags(launch: LaunchOptions, mixed_precision: str) -> list[str]:
    flags = ["--dynamo_backend", "no"]  # the script compiles block by block; accelerate would compile the whole model
    for name in ("num_processes", "num_machines", "num_cpu_threads_per_process"):
        flags += [f"--{name}", str(getattr(launch, name))]
    flags += ["--mixed_precision", mixed_precision]
    more = shell_words(launch.extra_accelerate_launch_args)
    if launch.num_processes > 1 and "--use_fsdp" not in more:  # FSDP is an alternative way to use several GPUs
        flags += ["--multi_gpu"]
    if launch.gpu_ids:
        flags += ["--gpu_ids", launch.gpu_ids.replace(" ", "")]
    if launch.main_process_port:
        flags += ["--main_process_port", str(launch.main_process_port)]
    return flags + more
