"""Inputs of a comparison: checkpoints, the settings of their training, and prompts. Read and checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.generating.compare_checkpoints import CheckpointOptions, MatrixOptions, ModelPrecisionOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.runs.comparison import FOLDER, Checkpoint, checkpoints_of
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.catalog import FAMILY_TITLES, GENERATE_SCRIPTS
from sd_scripts.settings.checks.model_files import why_no_lora
from sd_scripts.settings.generate_settings import AdapterFile, settings_of_training
from sd_scripts.settings.settings import Settings
from sd_scripts.tools.publish.trained import read_folder, training_settings

DEFAULT_SEED = 1
"""Seed of an image where neither seeds nor the prompt sets one."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Checkpoints and the training that made them."""

    settings: Settings
    state: RunState
    checkpoints: tuple[Checkpoint, ...]
    title: str
    folder: Path | None
    """Default folder of the result."""

    @property
    def family(self) -> str:
        return self.settings.script.family

    @property
    def has_adapters(self) -> bool:
        """Whether a checkpoint is an adapter of the base model, not a whole model."""
        return self.settings.script.method == "lora"

    @property
    def seed(self) -> int:
        """The seed of the training, which chooses its held-out images and their noise."""
        known = self.state.facts.get("seed")
        return known if isinstance(known, int) else self.settings[TrainingOptions].seed or 0

    def generating(
        self, checkpoint: Checkpoint, strength: float, model: ModelPrecisionOptions, images: Mapping[str, Any]
    ) -> Settings:
        """Return the settings that generate images with a checkpoint, with the training's options of the model."""
        values: dict[str, Any] = {"dtype": model.dtype, "compile": model.compile, **images}
        if self.has_adapters:
            return settings_of_training(self.settings, values, AdapterFile(checkpoint.path, strength))
        return settings_of_training(self.settings, values, model=str(checkpoint.path))

    def image_values(self, options: MatrixOptions) -> dict[str, Any]:
        """Return the prompts, and the defaults of images for values that these do not set. Raises ValueError if there
        is no prompt."""
        card = card_of(self.family)
        names = ("width", "height", "frames", "fps", "steps", "scale", "guidance", "sampler")
        own = {name: getattr(options, name) for name in names}
        defaults = {name: getattr(card.sample_defaults, name) for name in own}
        defaults["sampler"] = self.settings[SampleOptions].sample_sampler
        values = {**defaults, **{name: value for name, value in own.items() if value is not None}}
        values["negative_prompt"] = options.negative_prompt or card.sample_defaults.negative_prompt
        file = options.prompt_file
        prompts = list(options.prompt)
        if not file and not prompts:
            sample_prompts = self.settings[SampleOptions].sample_prompts
            file = sample_prompts if sample_prompts and Path(sample_prompts).is_file() else None
            prompts = [] if file else list(self._sampled())
        if not file and not prompts:
            raise ValueError("prompt: not set, and the run made no samples; give a prompt, or set no_images")
        values |= {"prompt": prompts} if prompts else {}
        return values | ({"prompt_file": file} if file else {})

    def _sampled(self) -> Iterator[str]:
        """Yield the prompts of samples that the run made, as lines."""
        for made in {made.number: made for made in self.state.samples if made.note}.values():
            size = f" --w {made.width} --h {made.height}" if made.width and made.height else ""
            length = f" --f {made.frames} --fps {made.fps:g}" if made.frames > 1 and made.fps else ""
            yield f"{made.note}{size}{length}" + ("" if made.seed is None else f" --d {made.seed}")


def rows_of(prompts: Iterable[SamplePrompt], seeds: Sequence[int]) -> list[SamplePrompt]:
    """Return each prompt with each seed: the rows of the matrix."""
    return [
        replace(prompt, seed=seed)
        for prompt in prompts
        for seed in (seeds or [DEFAULT_SEED if prompt.seed is None else prompt.seed])
    ]


def read_source(options: CheckpointOptions) -> Source:
    """Return the comparison's inputs that the options name. Raises ValueError, one sentence per line, for what cannot
    be compared."""
    if bool(options.run) == bool(options.config_file):
        raise ValueError("run: give the folder of a run, or config_file and checkpoints")
    if options.run:
        folder = Path(options.run)
        settings, state = _named("run", lambda: read_folder(folder))
        found = checkpoints_of(state)
    else:
        folder = Path(str(options.config_file))
        state = RunState()
        found = []
        values = _named("config_file", lambda: read_toml(folder))
        settings = _named("config_file", lambda: training_settings(values, values, str(folder)))
    steps = {each.path.absolute(): each for each in found}
    chosen = [Path(file) for file in dict.fromkeys(options.checkpoints)]
    checkpoints = [steps.get(path.absolute(), Checkpoint(path=path)) for path in chosen] or found
    source = Source(
        settings=settings,
        state=state,
        checkpoints=tuple(checkpoints),
        title=settings.values().get("output_name") or folder.stem,
        folder=folder / FOLDER if options.run else None,
    )
    if wrong := list(_problems(source, options)):
        raise ValueError("\n".join(wrong))
    return source


def _named(option: str, read: Any) -> Any:
    try:
        return read()
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def _problems(source: Source, options: CheckpointOptions) -> Iterator[str]:
    if source.settings.script.method == "textual_inversion":
        yield (
            "run: it trained embeddings, which the scripts that generate cannot apply; compare the checkpoints of a "
            "LoRA or of a full training"
        )
        return
    if source.family not in {script.family for script in GENERATE_SCRIPTS}:
        yield f"run: no script generates images of {FAMILY_TITLES[source.family]}; they cannot be compared"
        return
    if not source.checkpoints:
        where = f"the files that '{options.run}' saved no longer exist" if options.run else "not set"
        yield f"checkpoints: {where}; name the files to compare"
    if not options.output_dir and not source.folder:
        yield "output_dir: not set; name a folder for the result"
    for each in source.checkpoints:
        if why := _why_not(each.path, source):
            yield f"checkpoints: {why}"


def _why_not(path: Path, source: Source) -> str:
    """Return why a file is not a checkpoint of this family and method, going by its header; empty if it is."""
    if not path.exists():
        return f"file not found: '{path}'; leave it out"
    if source.has_adapters:
        return why_no_lora(path, source.family)
    found = describe(path)
    if found.problem:
        return found.problem
    if found.family and not card_of(source.family).trains(found.family):
        title = FAMILY_TITLES[source.family]
        return f"'{path}' is {found.is_a}, not a model of {title} like the others; leave it out"
    return ""
