"""Options of `accelerate launch`: read by the GUI when it builds the command, unknown to the training scripts."""

from sd_scripts.options.spec import OptionGroup, option


class LaunchOptions(OptionGroup, title="Accelerate launch"):
    """How many processes train, on which cards. mixed_precision is taken from the training options."""

    num_processes: int = option(1, "Processes in all, one for each GPU.", within=(1, 1024))
    num_machines: int = option(1, "Machines that train together.", within=(1, 256))
    num_cpu_threads_per_process: int = option(2, "CPU threads of each process.", within=(1, 256))
    gpu_ids: str = option("", "GPUs to use, as in 0,1; empty uses what CUDA shows first.")
    main_process_port: int = option(0, "Port of the main process; 0 lets accelerate choose.", within=(0, 65535))
    multi_gpu: bool = option(False, "Train on several GPUs; set by itself when num_processes is above 1.")
    extra_accelerate_launch_args: str = option("", "More arguments for accelerate launch, quoted as in a shell.")
