"""Options of the tool that compares the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.generating.prompt_lines import LARGEST_SEED, MAX_FPS, MAX_FRAMES
from sd_scripts.options.generating.sampling import SAMPLERS
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch
from sd_scripts.runs.comparison import WITHIN, Rule

MOST_IMAGES = 2000
"""Images of one comparison."""


class CheckpointOptions(OptionGroup, title="Checkpoints"):
    """Inputs of the comparison."""

    run: str | None = path_option("Run folder, which contains its config.toml and events.jsonl.")
    config_file: str | None = path_option(
        "Settings of a training (.toml), for checkpoints whose run folder no longer exists.", label="Settings file"
    )
    checkpoints: list[str] = option(
        [], "Files to compare, in the order of training. Default: all that the run saved.", path=True
    )
    output_dir: str | None = path_option(
        "Folder for the result. Default: 'comparison' in the run folder. Existing images and losses are reused."
    )


class MatrixOptions(OptionGroup, title="Images"):
    """An image of each checkpoint at each strength, for each prompt and seed."""

    strengths: list[float] = option([], "Strengths at which an adapter is applied. Default: 1.", within=(-100.0, 100.0))
    prompt: list[str] = option(
        [], "Prompts, with options such as --w 1024 --d 1 at their end. Default: the prompts of the run's samples."
    )
    prompt_file: str | None = path_option("File with more prompts, as sample_prompts of training.")
    negative_prompt: str = option("", "What to avoid, unless the prompt sets it (--n).")
    seeds: list[int] = option(
        [],
        "Seeds; with several there is an image of each prompt for each. Default: the prompt's own (--d), else 1.",
        within=(0, LARGEST_SEED),
    )
    width: int | None = optional("Width in pixels, unless the prompt sets it (--w).", within=(64, 8192))
    height: int | None = optional("Height in pixels, unless the prompt sets it (--h).", within=(64, 8192))
    frames: int | None = optional(
        "Frames of a clip, unless the prompt sets them (--f); 1 is an image.", within=(1, MAX_FRAMES), needs="clips"
    )
    fps: float | None = optional(
        "Frames per second of a clip, unless the prompt sets them (--fps).",
        label="Frames per second",
        within=(1.0, float(MAX_FPS)),
        needs="clips",
    )
    steps: int | None = optional("Sampling steps, unless the prompt sets it (--s).", within=(1, 999))
    scale: float | None = optional(
        "Classifier-free guidance, unless the prompt sets it (--l); 1 is off.",
        label="CFG scale",
        within=(0.0, 100.0),
    )
    guidance: float | None = optional(
        "Guidance of a distilled model, unless the prompt sets it (--g).", needs="guidance", within=(0.0, 100.0)
    )
    sampler: str | None = optional(
        "Sampler, unless the prompt sets it (--ss).", choices=SAMPLERS, needs="noise_schedule"
    )
    no_images: bool = switch("Skip the images; measure only the validation loss.", label="Losses only")


class ModelPrecisionOptions(OptionGroup, title="Model"):
    """How the model is loaded. Everything else about it is as in the run."""

    dtype: Literal["bf16", "fp16", "fp32"] | None = optional(
        "Precision of the model. Default: the precision of the run.", label="Precision"
    )
    compile: bool = switch("Compile the model: worth it from a few dozen images on. Losses are measured uncompiled.")


class LossOptions(OptionGroup, title="Validation"):
    """The loss of each checkpoint, at strength 1, on the same held-out images with the same noise and timesteps."""

    validation_dir: str | None = path_option(
        "Folder of images with captions that the run was not trained on. Default: the images that its "
        "validation_split held out.",
        label="Held-out images",
    )
    no_validation: bool = switch("Skip the validation loss.", label="Images only")
    rule: Rule | None = optional(
        "Which checkpoint is marked as the best: 'lowest' validation loss, lowest loss 'smoothed' over neighbours, "
        "'earliest' within some percent of the lowest, or 'last'. Default: the lowest, or the last if no loss "
        "is measured."
    )
    within: float = option(
        WITHIN,
        "How far above the lowest loss rule = earliest may go, in percent.",
        label="Within percent",
        within=(0.0, 100.0),
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.no_validation and self.validation_dir:
            yield "no_validation", "is on, and validation_dir is set; choose one"
        if self.no_validation and self.rule and self.rule != "last":
            yield "rule", f"'{self.rule}' needs the validation loss; turn no_validation off, or set rule = last"


COMPARE_GROUPS = (CheckpointOptions, MatrixOptions, LossOptions, ModelPrecisionOptions)
