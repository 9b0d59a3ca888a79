"""The command line that submits a run to Slurm."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import sd_scripts
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.run import RunOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.slurm import job
from sd_scripts.runs.store import SLURM, RunStore
from sd_scripts.settings.catalog import script_path
from sd_scripts.settings.settings import Settings

TEMPLATE = Path(sd_scripts.__file__).parent / "runs" / "slurm" / "template.sh"
NODE = "sd_scripts.settings.launching.slurm_node"
"""Starts the script on each node."""


def sbatch_command(slurm: SlurmOptions, launch: LaunchOptions, script: Sequence[str], folder: RunFolder) -> list[str]:
    """Return the command that submits a script with its flags, whose settings are in the run folder.

    Raises ValueError, which begins with an option's name, for settings that a job cannot have.
    """
    template = Path(slurm.slurm_template) if slurm.slurm_template else TEMPLATE
    try:
        requests = template.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"slurm_template: '{template}' cannot be read ({error.strerror})") from error
    own = [line for line in requests.splitlines() if line.startswith("#SBATCH")]

    def requests_itself(*flags: str) -> bool:
        return any(flag in line for line in own for flag in flags)

    processes = slurm.processes // slurm.slurm_nodes
    flags = [f"--job-name={folder.path.name}", f"--output={str(folder.console.absolute()).replace('%', '%%')}"]
    flags += [f"--nodes={slurm.slurm_nodes}", "--ntasks-per-node=1"]
    if slurm.slurm_partition:
        flags += [f"--partition={slurm.slurm_partition}"]
    if slurm.slurm_time:
        flags += [f"--time={slurm.slurm_time}"]
    if slurm.gpus_per_node and not requests_itself("--gpus", "--gres"):
        flags += [f"--gpus-per-node={slurm.slurm_gpus}"]
    if not requests_itself("--cpus-per", " -c"):
        flags += [f"--cpus-per-task={processes * launch.num_cpu_threads_per_process}"]
    return ["sbatch", "--parsable", *flags, str(template.absolute()), sys.executable, "-m", NODE, *script]


def submit(settings: Settings) -> job.SlurmJob:
    """Write the settings into the run folder and submit the run, which follows from them alone.

    Raises ValueError, one sentence, if Slurm refuses it; a run folder made for it is removed. Raises OSError if the
    folder cannot be written.
    """
    saving, chosen = settings[SavingOptions], settings[RunOptions].run_dir
    runs = Path(saving.output_dir or ".").absolute() / "runs"
    folder = RunFolder(Path(chosen).absolute()) if chosen else new_run_folder(runs, saving.output_name or "")
    if folder.config.exists():
        raise ValueError(f"run_dir: '{folder.path}' has the settings of another run; choose a new folder")
    folder.path.mkdir(parents=True, exist_ok=True)
    write_toml(folder.config, settings.saved())
    script = [str(script_path(settings.script)), "--config_file", str(folder.config), "--run_dir", str(folder.path)]
    try:
        command = sbatch_command(settings[SlurmOptions], settings[LaunchOptions], script, folder)
        return job.submit(command, folder)
    except ValueError:
        folder.config.unlink()
        if not chosen:
            folder.path.rmdir()
        raise


def add_to_list(run: job.SlurmJob, name: str, family: str) -> None:
    """Add a submitted run to the list that the page shows. Raises ValueError if the list cannot be written."""
    store = RunStore()
    try:
        row = store.add(run.folder, name=name, family=family, gpus=SLURM, state="starting")
        store.update(row.id, started=time.time(), process=run.key)
    finally:
        store.close()
