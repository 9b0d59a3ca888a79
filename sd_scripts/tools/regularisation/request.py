"""Which regularisation images are to be generated, and with which settings. Read and checked without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.buckets import Extent
from sd_scripts.dataset_view.regularisation import ImageClass, classes_of, unused
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.images.folder_names import dotted
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.dataset import CaptionOptions, DatasetOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt, line_keys, size_of
from sd_scripts.options.generating.regularisation import RegularisationOptions, RegularisationSamplingOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.model import MODEL
from sd_scripts.settings.catalog import FAMILY_TITLES, GENERATE_SCRIPTS
from sd_scripts.settings.generate_settings import prompts_of, settings_of_training
from sd_scripts.settings.settings import Settings
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.publish.trained import training_settings


@dataclass(frozen=True, kw_only=True)
class Request:
    """The regularisation images of a training."""

    training: Settings
    root: Path
    """The folder with a folder for each class."""
    classes: list[ImageClass]
    sampling: RegularisationSamplingOptions

    @property
    def family(self) -> str:
        return self.training.script.family

    @property
    def caption_extension(self) -> str:
        return dotted(self.training[CaptionOptions].caption_extension)

    def settings(self, of: ImageClass, extent: Extent) -> Settings:
        """Return the settings that generate images of a class in this size."""
        sampling = self.sampling
        card = card_of(self.family)
        defaults = replace(SamplePrompt(), width=extent.width, height=extent.height)
        height, width = size_of(defaults, card.side_multiple)
        values: dict[str, Any] = {
            **{"prompt": [of.line], "image_dir": str(self.root / of.folder_name)},
            **{"width": width, "height": height, "steps": sampling.steps, "scale": sampling.scale},
            **{"guidance": sampling.guidance, "dtype": sampling.dtype, "compile": sampling.compile},
            "negative_prompt": sampling.negative_prompt or card.sample_defaults.negative_prompt,
            "sampler": sampling.sampler or self.training[SampleOptions].sample_sampler,
        }
        if card.clips:
            values["frames"] = extent.frames
        names = settings_of_training(self.training, {}).options
        return settings_of_training(self.training, {k: v for k, v in values.items() if v is not None and k in names})

    def prompt(self, of: ImageClass, extent: Extent, number: int) -> SamplePrompt:
        """Return the prompt of the image of a class with this number. Raises ValueError, one sentence."""
        prompt = prompts_of(self.settings(of, extent))[0]
        first = self.sampling.image_seed if prompt.seed is None else prompt.seed
        return replace(prompt, seed=first + number)


def read_request(given: Given, warn: Callable[[str], None]) -> Request:
    """Return the images that the options describe. Raises ValueError, one sentence a line, for all that prevents
    them."""
    options: RegularisationOptions = given[RegularisationOptions]
    if not options.config_file:
        raise ValueError("config_file: not set; name the settings file of a training")
    file = Path(options.config_file)
    try:
        values = read_toml(file)
        model = str(values.get(MODEL) or "")  # a file for a training script names no family
        identity = {"family": describe(Path(model)).family if model else None, "method": "lora", **values}
        training = training_settings(identity, values, str(file))
    except ValueError as error:
        raise ValueError(f"config_file: {error}") from error
    family = training.script.family
    if family not in {script.family for script in GENERATE_SCRIPTS}:
        raise ValueError(f"config_file: no script generates images of {FAMILY_TITLES[family]}")
    root = options.reg_data_dir or training[DatasetOptions].reg_data_dir
    if not root:
        raise ValueError("reg_data_dir: not set; name the folder for the images")
    if wrong := [*_wrong_prompts(options.prompt)]:
        raise ValueError("\n".join(wrong))
    if remark := unused(training[DatasetOptions]):
        warn(remark)
    classes = classes_of(training, options.prompt, options.images)
    sampling = given[RegularisationSamplingOptions]
    return Request(training=training, root=Path(root), classes=classes, sampling=sampling)


def _wrong_prompts(lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if not str(line_keys(line)["prompt"]).strip():
            yield f"prompt: number {number} is empty; write what the images show"
