"""Options: samples."""

from typing import Literal, get_args

from sd_scripts.options.spec import OptionGroup, count, option, optional, switch


class SampleOptions(OptionGroup, title="Samples"):
    """Generate images during training to see what the model has learned."""

    sample_prompts: str | None = optional(
        "File with the prompts: .txt with one per line (such as `a cat --w 1024 --h 1024 --s 30`), .toml or .json.",
        label="Prompt file",
        path=True,
    )
    sample_every_n_steps: int | None = count("Generate samples every n steps.")
    sample_every_n_epochs: int | None = count(
        "Generate samples every n epochs; overrides sample_every_n_steps.", most=1_000_000
    )
    sample_at_first: bool = switch("Generate samples before the first step too, for comparison.")
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
        "ddim",
        "Sampler for the images; euler_a and dpmsolver++ are good choices.",
        label="Sampler",
        needs="noise_schedule",
    )


SAMPLERS: tuple[str, ...] = get_args(SampleOptions.__annotations__["sample_sampler"])
