"""Build the training command from settings: an argument list, never a shell line."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.spec import Remark
from sd_scripts.options.training import TrainingOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import flag_groups, script_path
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.launching.accelerate_command import Start, accelerated, sees_no_gpu, start_of
from sd_scripts.settings.launching.slurm import sbatch_command
from sd_scripts.settings.settings import Script, Settings

OF_JOBS = {"num_cpu_threads_per_process", "main_process_port", "extra_accelerate_launch_args"}
"""Options of accelerate that apply to Slurm jobs."""


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
    if settings[SlurmOptions].where == "slurm":
        return _for_slurm(settings, trained, run_dir)
    environment = settings.secrets()
    remarks = list(settings.remarks)
    if on_cpu and launch.num_processes > 1:
        environment["ACCELERATE_USE_CPU"] = "true"
        remarks.append(
            Remark("num_processes", "no GPU was found; run the command with ACCELERATE_USE_CPU=true in the environment")
        )
    start = start_of(trained, launch, precision, on_cpu)
    return LaunchCommand(
        argv=accelerated(trained, launch, precision),
        toml=settings.saved(),
        environment=environment,
        started=Start(start.argv, environment | start.environment),
        remarks=tuple(remarks),
    )


def _for_slurm(settings: Settings, trained: list[str], run_dir: Path | None) -> LaunchCommand:
    """Return the script's own command, which submits itself, and what the page starts: sbatch."""
    argv = [sys.executable, *trained]
    started = Start(argv, {})
    if run_dir:
        command = sbatch_command(settings[SlurmOptions], settings[LaunchOptions], trained, RunFolder(run_dir))
        started = Start(command, {})
    left_out = [] if "--config_file" in trained else settings.changed().keys() & OF_JOBS
    remarks = [Remark(name, "has no flag, so the command leaves it out; use it from a file") for name in left_out]
    return LaunchCommand(
        argv=argv,
        toml=settings.saved(),
        started=started,
        environment=settings.secrets(),
        remarks=(*settings.remarks, *remarks),
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
