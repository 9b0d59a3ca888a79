"""Start a training of one process as `accelerate launch` would, without it: its own import of torch takes seconds at
every start, and memory for as long as the training runs."""

import os
from pathlib import Path

from sd_scripts.options.launch import LaunchOptions


def direct_environment(launch: LaunchOptions, mixed_precision: str, on_cpu: bool) -> dict[str, str] | None:
    """Return the environment variables that `accelerate launch` sets for a script that it starts with our flags.

    None where only accelerate knows how to start it: several processes or machines, arguments of the user for
    accelerate, a file that `accelerate config` wrote, and chosen GPUs that are not CUDA's or ROCm's.

    Source: accelerate 1.15, `prepare_simple_launcher_cmd_env`.
    """
    only_accelerate = launch.num_processes > 1 or launch.num_machines > 1 or launch.extra_accelerate_launch_args
    if only_accelerate or default_config().is_file() or (launch.gpu_ids and on_cpu):
        return None
    gpus = launch.gpu_ids.replace(" ", "")
    return {
        "ACCELERATE_USE_CPU": "False",
        "ACCELERATE_MIXED_PRECISION": mixed_precision,
        "ACCELERATE_DYNAMO_BACKEND": "NO",
        "ACCELERATE_DYNAMO_MODE": "default",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
        "OMP_NUM_THREADS": str(launch.num_cpu_threads_per_process),
        **({"CUDA_VISIBLE_DEVICES": gpus} if gpus not in ("", "all") else {}),
    }


def default_config() -> Path:
    """Return where `accelerate config` writes its settings, which `accelerate launch` reads."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    return Path(os.path.expanduser(home)) / "accelerate" / "default_config.yaml"
