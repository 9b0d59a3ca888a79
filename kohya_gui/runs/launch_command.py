"""Build the training command from settings: an argument list, never a shell line."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kohya_gui.runs.direct_start import direct_environment
from sd_scripts.formats.words import shell_words
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.spec import Remark
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.catalog import flag_groups, script_path
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Script, Settings


class Start(NamedTuple):
    """The command that the page starts: the script itself or, where only accelerate knows how, `accelerate launch`."""

    argv: list[str]
    environment: dict[str, str]
    """Added to the process's own."""


@dataclass(frozen=True, kw_only=True)
class LaunchCommand:
    """The command to start, the TOML to write first, and the environment to pass."""

    argv: list[str]
    """The printed command, which can be run in a terminal."""
    toml: dict[str, Any]
    """The settings for the file that `argv` passes as --config_file, if it does."""
    started: Start
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the process's own: secrets, and settings for which accelerate has no flag."""
    remarks: tuple[Remark, ...] = ()


def build(
    settings: Settings,
    script: Script,
    toml_path: Path | None = None,
    *,
    run_dir: Path | None = None,
    cpu: bool | None = None,
) -> LaunchCommand:
    """Return the command that trains with `settings`, which must be valid.

    The settings go into the file `toml_path` or, without one, into the command itself as flags. Compile options are
    flags in both cases, so that the command shows them. `cpu`: whether there is no GPU; None detects it. Nothing is
    written or started.
    """
    launch = settings[LaunchOptions]
    on_cpu = sees_no_gpu() if cpu is None else cpu
    several = launch.num_processes > 1
    where = script_path(script)
    changed = settings.changed()
    values = settings.values()
    names = [o.name for group in flag_groups(script) for o in each_option(group)]
    compiled = {o.name: changed[o.name] for o in each_option(CompileOptions) if o.name in changed and o.is_on(values)}
    others = {name: changed[name] for name in names if name in changed and name not in compiled}
    precision = settings[TrainingOptions].mixed_precision
    trained = [
        str(where),
        *(("--config_file", str(toml_path)) if toml_path else setting_flags(others)),
        *setting_flags(compiled),
        *(("--run_dir", str(run_dir)) if run_dir else ()),
    ]
    argv = [*accelerate_launch(), *_accelerate_flags(launch, precision), *trained]
    environment = settings.secrets()
    remarks = list(settings.remarks)
    if on_cpu and several:  # accelerate's own --cpu would silently run one process
        environment["ACCELERATE_USE_CPU"] = "true"
        remarks.append(
            Remark("num_processes", "no GPU was found; run the command with ACCELERATE_USE_CPU=true in the environment")
        )
    direct = direct_environment(launch, precision, on_cpu)
    through_accelerate = Start(argv, environment)
    started = through_accelerate if direct is None else Start([sys.executable, *trained], environment | direct)
    return LaunchCommand(
        argv=argv, toml=settings.saved(), environment=environment, started=started, remarks=tuple(remarks)
    )


def setting_flags(values: Mapping[str, Any]) -> list[str]:
    """Return values by option name as flags of a training script."""
    flags: list[str] = []
    for name, given in values.items():
        match given:
            case bool(on):
                flags.append(f"--{name}" if on else f"--no-{name}")
            case list(words):
                flags += [f"--{name}", *map(str, words)]
            case value:
                text = "" if value is None else str(value)
                # argparse would read a value that begins with a minus as a flag
                flags += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return flags


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
