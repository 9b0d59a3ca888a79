"""Starts a training script on a node of a Slurm job; the batch script calls it once on each node, through srun."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.run import RunOptions
from sd_scripts.options.training import LATEST, TrainingOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.command_line import read_command_line
from sd_scripts.settings.launching.accelerate_command import Start, sees_no_gpu, start_of
from sd_scripts.settings.settings import Script

PORTS = range(20000, 30000)
"""Ports over which the nodes may connect: below those that systems give to outgoing connections."""


def command(argv: Sequence[str], environment: Mapping[str, str], on_cpu: bool) -> Start:
    """Return how this node starts the script `argv[0]` with its flags; `environment`: the task's."""
    script, flags = argv[0], [*argv[1:], "--where", "here"]
    settings, _ = read_command_line(_script(Path(script)), flags)
    slurm, launch = settings[SlurmOptions], settings[LaunchOptions]
    folder = settings[RunOptions].run_dir
    if int(environment.get("SLURM_RESTART_COUNT", "0")) and folder and has_states(RunFolder(Path(folder))):
        flags += ["--resume", LATEST]
    several = slurm.slurm_nodes > 1
    more = launch.extra_accelerate_launch_args
    if several:
        more = f"--machine_rank {environment['SLURM_NODEID']} --main_process_ip {_first_node(environment)} {more}"
    launch = replace(
        launch,
        num_processes=slurm.processes,
        num_machines=slurm.slurm_nodes,
        gpu_ids="",  # Slurm chooses them
        main_process_port=_port(launch.main_process_port, environment) if several else 0,
        extra_accelerate_launch_args=more.strip(),
    )
    return start_of([script, *flags], launch, settings[TrainingOptions].mixed_precision, on_cpu)


def has_states(folder: RunFolder) -> bool:
    """Return whether the run of this folder has saved a state before."""
    saved = (str(event.get("path")) for event in folder.events() if event.get("kind") == "saved")
    return any(path.endswith(STATE_ENDING) for path in saved)


def _script(file: Path) -> Script:
    return next(script for script in SCRIPTS if script.file == file.name)


def _first_node(environment: Mapping[str, str]) -> str:
    shown = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()[0]


def _port(chosen: int, environment: Mapping[str, str]) -> int:
    """Return the same port on all nodes: the chosen one, or one by the number of the job, which others do not share."""
    return chosen or PORTS[int(environment["SLURM_JOB_ID"]) % len(PORTS)]


def main(argv: Sequence[str] | None = None) -> None:
    start = command(sys.argv[1:] if argv is None else argv, os.environ, sees_no_gpu())
    os.execvpe(start.argv[0], start.argv, {**os.environ, "PYTHONUNBUFFERED": "1", **start.environment})


if __name__ == "__main__":
    main()
