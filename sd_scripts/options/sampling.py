"""Options: samples."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class SampleOptions(OptionGroup, title="Samples"):
    """Pictures made while training."""

    sample_prompts: str | None = option(None, "Prompt file (.txt/.toml/.json).")
    sample_every_n_steps: int | None = option(None, "Sample period in steps.")
    sample_every_n_epochs: int | None = option(None, "Sample period in epochs; wins over steps.")
    sample_at_first: bool = option(False, "Sample before step 1.")
    sample_sampler: Literal[
        "ddim",
        "pndm",
        "lms",
        "euler",
        "euler_a",
        "heun",
        "dpm_2",
        "dpm_2_a",
        "dpmsolver",
        "dpmsolver++",
        "dpmsingle",
        "k_lms",
        "k_euler",
        "k_euler_a",
        "k_dpm_2",
        "k_dpm_2_a",
    ] = option("ddim", "Scheduler for SD/SDXL samples.", families=("sdxl",))
