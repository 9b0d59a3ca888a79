"""Options of `accelerate launch`: used where the command is built; a training script accepts and ignores them."""

from collections.abc import Iterable

from sd_scripts.formats.words import is_whole_number, shell_words
from sd_scripts.options.spec import OptionGroup, option, switch


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
