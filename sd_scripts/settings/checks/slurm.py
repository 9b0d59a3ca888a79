"""Checks of options about where a run starts."""

from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.spec import Findings
from sd_scripts.settings.checks.run_values import RunValues


def options_of_this_machine(values: RunValues) -> Findings:
    launch = values[LaunchOptions]
    if values[SlurmOptions].where == "here":
        return
    for name, usual in {"num_processes": 1, "num_machines": 1, "gpu_ids": ""}.items():
        if getattr(launch, name) != usual:
            yield name, "has no effect on a Slurm job; set slurm_nodes and slurm_gpus instead"
