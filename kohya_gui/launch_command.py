"""Build the training command from settings: an argument list, never a shell line."""

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sd_scripts
from sd_scripts.formats.words import shell_words
from sd_scripts.options.catalog import Script
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.launch import LaunchOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.saving import HuggingFaceOptions
from sd_scripts.options.settings import Remark, Settings
from sd_scripts.options.spec import each_option
from sd_scripts.options.training import TrainingOptions

SECRETS = {
    "WANDB_API_KEY": (LoggingOptions, "wandb_api_key"),
    "HF_TOKEN": (HuggingFaceOptions, "huggingface_token"),
}
"""Environment variables that hold secrets, which no file may contain, and the options they come from."""


@dataclass(frozen=True, kw_only=True)
class LaunchCommand:
    """The command to start, the TOML to write first, and the environment to pass."""

    argv: list[str]
    toml: dict[str, Any]
    """The settings for the file that `argv` passes as --config_file, if it does."""
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

    The settings go into the file `toml_path` or, without one, into the command itself as flags.
    `cpu` says that there is no GPU; None detects it. Nothing is written or started.
    """
    launch = settings[LaunchOptions]
    on_cpu = sees_no_gpu() if cpu is None else cpu
    several = launch.num_processes > 1
    where = Path(sd_scripts.__file__).resolve().parent / script.file
    argv = [
        *accelerate_launch(),
        *_accelerate_flags(launch, settings[TrainingOptions].mixed_precision),
        str(where),
        *(("--config_file", str(toml_path)) if toml_path else setting_flags(settings, script)),
        *compile_flags(settings[CompileOptions]),
        *(("--run_dir", str(run_dir)) if run_dir else ()),
    ]
    environment = _secrets(settings)
    remarks = list(settings.remarks)
    if on_cpu and several:  # accelerate's own --cpu would silently run one process
        environment["ACCELERATE_USE_CPU"] = "true"
        remarks.append(
            Remark("num_processes", "no GPU was found; run the command with ACCELERATE_USE_CPU=true in the environment")
        )
    return LaunchCommand(argv=argv, toml=settings.saved(), environment=environment, remarks=tuple(remarks))


def setting_flags(settings: Settings, script: Script) -> list[str]:
    """Return flags for what differs from the defaults, except secrets and the compile options, which come last."""
    flags: list[str] = []
    changed = settings.changed()
    groups = (group for group in script.flag_groups if group is not CompileOptions)
    for name in (o.name for group in groups for o in each_option(group) if o.name in changed):
        match changed[name]:
            case bool(on):
                flags.append(f"--{name}" if on else f"--no-{name}")
            case list(values):
                flags += [f"--{name}", *map(str, values)]
            case value:
                text = "" if value is None else str(value)
                # argparse would read a value that begins with a minus as a flag
                flags += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return flags


def compile_flags(options: CompileOptions) -> list[str]:
    """Return the flags of the compile options; they are in the file too, and repeated here to be visible."""
    if not options.compile:
        return []
    flags: list[str] = []
    for o in each_option(CompileOptions):
        value = getattr(options, o.name)
        if value != o.default:
            flags += [f"--{o.name}"] if value is True else [f"--{o.name}", str(value)]
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
    if launch.num_processes > 1 and "--use_fsdp" not in more:  # FSDP is another way to use several GPUs
        flags += ["--multi_gpu"]
    if launch.gpu_ids:
        flags += ["--gpu_ids", launch.gpu_ids.replace(" ", "")]
    if launch.main_process_port:
        flags += ["--main_process_port", str(launch.main_process_port)]
    return flags + more


def _secrets(settings: Settings) -> dict[str, str]:
    handed = {name: getattr(settings[group], option) for name, (group, option) in SECRETS.items()}
    return {name: value for name, value in handed.items() if value}
