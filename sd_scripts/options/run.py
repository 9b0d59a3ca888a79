"""Options of the process: the run folder, and PyTorch's CUDA settings."""

from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch


class RunOptions(OptionGroup, title="Run"):
    """Where the run keeps its settings, events and console output."""

    run_dir: str | None = path_option(
        "Folder for the settings, events and console output of this run. "
        "Default: a new one in output_dir/runs, named after the time and output_name.",
        label="Run folder",
    )


class CudaOptions(OptionGroup, title="CUDA"):
    """Speed and reproducibility of PyTorch on NVIDIA GPUs."""

    cuda_allow_tf32: bool = switch(
        "Use TF32 for float32 matrix products: faster, slightly less exact.", label="Allow TF32"
    )
    float32_norms: bool = switch(
        "Compute group norms and the SiLU after them in float32 and round once, as autocast does: without compile, "
        "gradients are then nearly as exact as with sd-scripts under autocast. Takes 1 % longer, and 0.6 GiB more for "
        "each image of 1024x1024. "
        "Compiled steps round once anyway.",
        label="Norms in float32",
        needs="group_norms",
    )
    cuda_cudnn_benchmark: bool = switch(
        "Let cuDNN benchmark its convolutions for each size and use the fastest. Helps with few bucket sizes.",
        label="cuDNN benchmark",
    )
    record_steps: bool = option(
        True,
        "Record forward and backward of a step as a CUDA graph, with AdamW its update too, and replay them: steps run "
        "at the GPU's speed, however slow the CPU is, with the same result. Nothing is compiled. Batches that do "
        "not fit next to the graphs, and settings that cannot be recorded, such as swapped blocks or a model that FSDP "
        "shards, work as usual.",
        label="Record steps",
    )
    deterministic: bool = switch(
        "Use deterministic kernels, so that GPU runs repeat and resume bit for bit. Slower.",
        label="Deterministic kernels",
    )
    gpu_memory_limit: float | None = optional(
        "Leave GPU memory to other programs: use at most this many GiB, CUDA's own included, and end with an "
        "out-of-memory error beyond. On Windows it keeps the driver from moving GPU memory to RAM. Default: all of it.",
        label="GPU memory limit (GiB)",
        within=(2, 1000),
    )
