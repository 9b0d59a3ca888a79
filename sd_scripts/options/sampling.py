"""Options: samples."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, each_option, option


class SampleOptions(OptionGroup, title="Samples"):
    """Images made while training, to see what has been learned."""

    sample_prompts: str | None = option(
        None,
        "File with the prompts: .txt with one a line (such as `a cat --w 1024 --h 1024 --s 30`), .toml or .json.",
        label="Prompt file",
        path=True,
    )
    sample_every_n_steps: int | None = option(
        None, "Make samples every n steps.", within=(0, 10_000_000), zero_is_off=True
    )
    sample_every_n_epochs: int | None = option(
        None, "Make samples every n epochs; wins over steps.", within=(0, 1_000_000), zero_is_off=True
    )
    sample_at_first: bool = option(False, "Make samples before the first step too, to compare with.")
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
    ] = option(
        "ddim", "Sampler that makes them; euler_a and dpmsolver++ are good.", label="Sampler", families=("sdxl",)
    )


SAMPLERS = next(o.choices for o in each_option(SampleOptions) if o.name == "sample_sampler")
