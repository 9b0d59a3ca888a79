"""Options: samples."""

from sd_scripts.options.spec import OptionGroup, count, option, path_option, switch

SAMPLERS = (
    *("ddim", "pndm", "lms", "euler", "euler_a", "heun", "dpm_2", "dpm_2_a", "dpmsolver", "dpmsolver++", "dpmsingle"),
    *("k_lms", "k_euler", "k_euler_a", "k_dpm_2", "k_dpm_2_a"),
)

SAMPLE_MODEL = "sample_model"
"""The option, and the capability that it needs."""


class SampleOptions(OptionGroup, title="Samples"):
    """Generate images during training to follow its progress."""

    sample_prompts: str | None = path_option(
        "File with the prompts: .txt with one per line (such as `a cat --w 1024 --h 1024 --s 30`), .toml or .json.",
        label="Prompt file",
    )
    sample_every_n_steps: int | None = count("Generate samples every n steps.")
    sample_every_n_epochs: int | None = count(
        "Generate samples every n epochs; overrides sample_every_n_steps.", most=1_000_000
    )
    sample_at_first: bool = switch("Generate samples before the first step too, for comparison.")
    sample_model: str | None = path_option(
        "Model that samples are made with, under the LoRA: a file or folder of the same architecture and size, such as "
        "the distilled model, which needs few steps. Its weights wait in RAM.",
        label="Model for samples",
        needs=SAMPLE_MODEL,
        methods=("lora",),
    )
    sample_sampler: str = option(
        "ddim",
        "Sampler for the images; euler_a and dpmsolver++ are good choices.",
        label="Sampler",
        choices=SAMPLERS,
        needs="noise_schedule",
    )
