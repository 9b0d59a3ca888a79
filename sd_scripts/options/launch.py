"""Where a training script runs and how it is started: options of `accelerate launch`, used where the command is built,
and of a Slurm job."""

import re
from collections.abc import Iterable
from typing import Literal

from sd_scripts.formats.words import is_whole_number, shell_words
from sd_scripts.options.spec import OptionGroup, option, path_option, switch

TIME_LIMIT = re.compile(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}|UNLIMITED)", re.ASCII)
GPUS = re.compile(r"([\w.-]+:){0,2}(?P<count>\d{1,3})", re.ASCII)
PARTITIONS = re.compile(r"[\w.+@-]+(,[\w.+@-]+)*", re.ASCII)


class LaunchOptions(OptionGroup, title="Accelerate launch"):
    """How many processes train, on which GPUs. The precision comes from mixed_precision."""

    num_processes: int = option(1, "Total number of processes, one per GPU.", label="Processes", within=(1, 1024))
    num_machines: int = option(1, "Number of machines that train together.", label="Machines", within=(1, 256))
    num_cpu_threads_per_process: int = option(
        2, "CPU threads that each process may use.", label="CPU threads per process", within=(1, 256)
    )
    gpu_ids: str = option(
        "", "GPUs to use, such as 0,1; empty uses the first ones that CUDA lists.", label="GPU IDs", placeholder="0,1"
    )
    main_process_port: int = option(
        0, "Port over which processes connect; 0 lets accelerate choose.", label="Main process port", within=(0, 65535)
    )
    multi_gpu: bool = switch(
        "Train on several GPUs.", not_yet="automatic if num_processes is above 1; set num_processes instead"
    )
    extra_accelerate_launch_args: str = option(
        "", "More arguments for accelerate launch, quoted as in a shell.", label="Extra accelerate arguments"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        ids = [part.strip() for part in self.gpu_ids.split(",")] if self.gpu_ids else []
        if ids and ids != ["all"] and not all(map(is_whole_number, ids)):
            yield "gpu_ids", f"{self.gpu_ids!r} is not a list of numbers; write 0 or 0,1"
        elif ids and ids != ["all"] and len(ids) * self.num_machines < self.num_processes:
            yield "gpu_ids", f"lists {len(ids)} for num_processes = {self.num_processes}; list one for each process"
        try:
            shell_words(self.extra_accelerate_launch_args)
        except ValueError:
            yield "extra_accelerate_launch_args", "has an unclosed quotation mark"


class SlurmOptions(OptionGroup, title="Slurm"):
    """Whether the run starts on this machine or as a Slurm job, and what the job requests."""

    where: Literal["here", "slurm"] = option(
        "here",
        "Start the run on this machine, or submit it to Slurm with sbatch.",
        label="Where",
        choice_labels={"here": "This machine", "slurm": "Slurm"},
    )
    slurm_partition: str = option(
        "",
        "Partition of the job, or several separated by commas. Default: the cluster's own.",
        label="Partition",
        shown_for=("where", ("slurm",)),
    )
    slurm_nodes: int = option(
        1, "Nodes that train together.", label="Nodes", within=(1, 256), shown_for=("where", ("slurm",))
    )
    slurm_gpus: str = option(
        "1",
        "GPUs of each node, one process for each: a number, or a type and a number such as a100:2. 0 requests none and "
        "trains on the CPU.",
        label="GPUs per node",
        shown_for=("where", ("slurm",)),
    )
    slurm_time: str = option(
        "",
        "Time limit of the job, such as 90 (minutes), 12:00:00 or 2-00:00:00. Default: the partition's.",
        label="Time limit",
        placeholder="12:00:00",
        shown_for=("where", ("slurm",)),
    )
    slurm_template: str | None = path_option(
        "Batch script that starts the command it is given: a copy of the template in the documentation, with account, "
        "memory and modules of your cluster added. Default: that template.",
        label="Batch script",
        shown_for=("where", ("slurm",)),
    )

    @property
    def gpus_per_node(self) -> int:
        return int(self.slurm_gpus.rpartition(":")[2])

    @property
    def processes(self) -> int:
        """Total number of processes of a job."""
        return self.slurm_nodes * max(self.gpus_per_node, 1)

    def check(self) -> Iterable[tuple[str, str]]:
        if self.slurm_partition and not PARTITIONS.fullmatch(self.slurm_partition):
            yield "slurm_partition", f"{self.slurm_partition!r} is not the name of a partition; `sinfo` lists them"
        if not GPUS.fullmatch(self.slurm_gpus):
            yield "slurm_gpus", f"{self.slurm_gpus!r} is not a number of GPUs; write 2 or a100:2"
        if self.slurm_time and not TIME_LIMIT.fullmatch(self.slurm_time):
            yield "slurm_time", f"{self.slurm_time!r} is not a time limit; write 12:00:00 or 2-00:00:00"
