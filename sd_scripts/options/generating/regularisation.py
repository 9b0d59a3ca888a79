"""Options of the tool that generates the regularisation images of a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.generating.prompt_lines import LARGEST_SEED
from sd_scripts.options.generating.sampling import SAMPLERS
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

MOST_IMAGES = 100_000
"""Regularisation images of one training."""


class RegularisationOptions(OptionGroup, title="Regularisation images"):
    """Which images to generate, and where they go."""

    config_file: str | None = path_option("Settings of the training (.toml).", label="Settings file")
    reg_data_dir: str | None = path_option(
        "Folder for the images, in a subfolder for each class. Default: reg_data_dir of the training.",
        label="Regularisation images",
    )
    prompt: list[str] = option(
        [],
        "What the images show, such as: a photo of a cat. Options such as --n blurry may stand at the end. Default: "
        "the class in the names of the training folders, which is cat for 10_cat and for 10_ohwx cat.",
        label="Class prompts",
    )
    images: int | None = optional(
        "Images in all, including those that are there. Default: the number that training uses in an epoch, which is "
        "the training images times their repeats.",
        within=(1, MOST_IMAGES),
        label="Images",
    )


class RegularisationSamplingOptions(OptionGroup, title="Sampling"):
    """How the images are generated. Everything else about the model is as in the training."""

    negative_prompt: str = option("", "What to avoid, unless the prompt sets it (--n).")
    steps: int | None = optional("Sampling steps. Default: the family's.", within=(1, 999))
    scale: float | None = optional(
        "Classifier-free guidance; 1 is off. Default: the family's.", label="CFG scale", within=(0.0, 100.0)
    )
    guidance: float | None = optional(
        "Guidance of a distilled model. Default: the family's.", needs="guidance", within=(0.0, 100.0)
    )
    sampler: str | None = optional("Sampler.", choices=SAMPLERS, needs="noise_schedule")
    image_seed: int = option(
        1, "Seed of the first image of each class; the others count up.", label="Seed", within=(0, LARGEST_SEED)
    )
    batch_size: int = option(1, "Images to generate together.", within=(1, 64), needs="batches", label="Batch size")
    dtype: Literal["bf16", "fp16", "fp32"] | None = optional(
        "Precision of the model. Default: the precision of the training.", label="Precision"
    )
    compile: bool = switch("Compile the model: worth it from a few dozen images on.", label="Compile")

    def check(self) -> Iterable[tuple[str, str]]:
        if self.negative_prompt.startswith("-"):
            yield "negative_prompt", f"{self.negative_prompt!r} begins with a -, like a flag; change it"


REGULARISATION = (RegularisationOptions, RegularisationSamplingOptions)
