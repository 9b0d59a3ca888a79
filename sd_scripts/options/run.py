"""Options of the process: the run folder, and what PyTorch may do on the card."""

from sd_scripts.options.spec import OptionGroup, option


class RunOptions(OptionGroup, title="Run"):
    """Where the run keeps its diary."""

    run_dir: str | None = option(
        None,
        "Folder for the settings, events and console of this run; "
        "unset makes one under output_dir/runs, named by time and output_name.",
        label="Run folder",
        path=True,
    )


class CudaOptions(OptionGroup, title="CUDA"):
    """What PyTorch may do on an NVIDIA card."""

    cuda_allow_tf32: bool = option(
        False, "Let float32 matrix products use TF32: faster, slightly less exact.", label="Allow TF32"
    )
    cuda_cudnn_benchmark: bool = option(
        False,
        "Let cuDNN time its convolutions for each size and keep the fastest; helps with few bucket sizes.",
        label="Benchmark cuDNN",
    )
    deterministic: bool = option(
        False,
        "Choose kernels that give the same bits each time: runs repeat and resume exactly on a GPU too; slower.",
        label="Deterministic kernels",
    )
