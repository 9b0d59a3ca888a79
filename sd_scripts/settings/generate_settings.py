"""The settings of a script that generates images: read from a command line or a request, and checked without torch."""

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.generate import FILES_OF, GENERATE, GenerateOptions
from sd_scripts.options.generating.prompt_lines import (
    CONTROL_CLIP,
    LINE_OPTIONS,
    NEW_SEED,
    SamplePrompt,
    dropped_words,
    file_problem,
    line_keys,
    prompt_of_line,
    read_prompt_file,
    with_effect,
)
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.spec import truth
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.catalog import SCRIPTS, script_for
from sd_scripts.settings.checks import model_files as model_checks
from sd_scripts.settings.command_line import ConfigFileOptions, Parser, add_arguments, read_flags
from sd_scripts.settings.compat.generate_flags import OtherFlags, alias_of, translate
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.preflight import found_by, why_no_folder
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Check, Groups, Problem, Script, Settings, reading
from sd_scripts.settings.sweeps import cells_of

DEFAULTS = {"compile_mode": "max-autotune-no-cudagraphs"}
"""Option -> its default here: a model runs many steps of few shapes, and images of a different size would need CUDA
graphs of their own."""
FROM_TRAINING = (ModelOptions, MemoryOptions)
"""Groups of a settings file of a training that generating reads, in addition to the family's own."""
OF_MODEL = ("dtype", "zero_terminal_snr", "resident")
"""Options of GenerateOptions that are about the model or how it is loaded."""
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
"""dtype -> mixed_precision."""


@dataclass(frozen=True)
class AdapterFile:
    """An adapter to apply."""

    path: Path
    strength: float = 1.0
    high_noise: bool | None = None
    """Whether it is for the model for high noise, if there are two, or for the other; None: for those that it was
    trained on, as its metadata says, or else for the other."""


def setup_parser(family: str) -> Parser:
    """Return the parser of a family's script: its flags in sections, with their help."""
    script = script_for(family, GENERATE)
    made = Parser(prog=script.file, usage="%(prog)s --prompt TEXT [flags]", allow_abbrev=False)
    add_arguments(made, ConfigFileOptions, *script.groups, OtherFlags, method=GENERATE)
    return made


def read_command_line(family: str, argv: Sequence[str] | None = None) -> tuple[Settings, list[Problem]]:
    """Return the settings of a command line (defaults, then --config_file, then the flags) and the flags' problems.

    Exits with code 0 after --help, and with 2, one sentence, if --config_file cannot be read.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & {*words}:
        setup_parser(family).print_help()
        sys.exit(0)
    script = script_for(family, GENERATE)
    card = card_of(family)
    groups: Groups = (ConfigFileOptions, *script.groups, OtherFlags)
    given = read_flags(groups, [_without_alias(word, card) for word in words], card.aliases)
    translated = translate(given.values, card)
    flags = translated.values
    file = os.path.expanduser(flags.pop("config_file", None) or "")
    flags.pop("output_config", None)
    try:
        values = read_toml(Path(file)) if file else {}
    except ValueError as error:
        print(f"config_file: {error}", file=sys.stderr)
        sys.exit(2)
    settings = settings_of(family, values, flags)
    settings.remarks = [*translated.remarks, *settings.remarks]
    return settings, [*given.problems, *translated.problems]


def _without_alias(word: str, card: FamilyCard) -> str:
    """Return a flag under our name."""
    name, equals, value = word.partition("=")
    known = alias_of(name.removeprefix("--"), card) if name.startswith("--") else None
    return f"--{known}{equals}{value}" if known else word


def settings_of(family: str, file: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Return the settings for the values of a file, which may be one of a training, overridden by `values`."""
    script = script_for(family, GENERATE)
    both = {**of_generating(file, script), **values}
    inductor = both.get("compile_backend", "inductor") == "inductor"
    defaults = DEFAULTS if truth(both.get("compile", False)) and inductor else {}
    settings = from_values(script, defaults, both)
    if truth(both.get("compile_auto", False)):
        settings.remark("compile_auto: has no effect when generating; set compile, or leave it off")
    if both.get("control_directory"):
        settings.remark("control_directory: has no effect when generating; name control images with --ci in the prompt")
    return settings


def of_generating(file: Mapping[str, Any], script: Script) -> dict[str, Any]:
    """Return the values of a settings file that generating reads: from a training's file only the model's."""
    if file.get("method", GENERATE) == GENERATE and "learning_rate" not in file and "train_data_dir" not in file:
        return dict(file)
    own = [group for group in script.groups if group in (*FROM_TRAINING, *card_of(script.family).groups)]
    names = {o.name for group in own for o in each_option(group)} - {"control_directory"} | {"family"}
    in_fp8 = "quantize_base" in names and any(truth(file.get(name, False)) for name in ("fp8_base", "fp8_base_unet"))
    own_names = {"quantize_base": "fp8"} if in_fp8 else {}
    return {**{name: value for name, value in file.items() if name in names}, **own_names}


def settings_of_training(
    training: Settings, values: Mapping[str, Any], adapter: AdapterFile | None = None, model: str = ""
) -> Settings:
    """Return the settings, with these values, that generate images with the base model of a training and the
    `base_weights` merged into it; with `adapter` too, or with `model` instead of the base model."""
    network = training.get(NetworkOptions)
    merged = list(network.base_weights) if network else []
    strengths = list((network.base_weights_multiplier if network else []) or [1.0] * len(merged))
    if adapter:
        merged, strengths = [*merged, str(adapter.path)], [*strengths, adapter.strength]
    file: dict[str, Any] = {**training.saved(), "learning_rate": 0}
    if model:
        file[MODEL] = model
    precision = training[TrainingOptions].mixed_precision
    dtype = next(name for name, mixed in DTYPES.items() if mixed == precision)
    if merged:
        values = {**values, "lora_weights": merged, "lora_multiplier": strengths}
    if training.values().get("zero_terminal_snr") and (adapter or model):  # the base model was not trained with it
        values = {**values, "zero_terminal_snr": True}
    return settings_of(training.script.family, file, {**values, "dtype": values.get("dtype") or dtype})


def training_settings(settings: Settings) -> Settings:
    """Return the settings of a LoRA training of the same model, which a family reads to load and to sample.

    Raises WrongValue if `settings.without` left out one of its values."""
    options = settings[GenerateOptions]
    script = next(each for each in SCRIPTS if (each.family, each.method) == (settings.script.family, "lora"))
    known = {o.name for group in script.groups for o in each_option(group)}
    other = {o.name for o in each_option(GenerateOptions)}
    shared = {name: settings.value(name) for name in settings.options if name in known - other}
    own = {
        "mixed_precision": DTYPES[options.dtype],
        "sample_sampler": options.sampler,
        "zero_terminal_snr": options.zero_terminal_snr,
    }
    return Settings(script, {**shared, **own})


def model_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that decide which model is loaded, and how: while they stay the same, it can be kept."""
    of_images = {o.name for group in (GenerateOptions, ControlOptions) for o in each_option(group)}
    of_images = of_images - {*OF_MODEL} | {"run_dir"}
    return {name: value for name, value in values.items() if name not in of_images}


def adapters_of(options: GenerateOptions) -> tuple[AdapterFile, ...]:
    high = bool(options.lora_weight_high_noise)
    found = [
        (options.lora_weights, options.lora_multiplier, False if high else None),
        (options.lora_weight_high_noise, options.lora_multiplier_high_noise, True),
    ]
    return tuple(
        AdapterFile(Path(file), strength, high_noise)
        for files, strengths, high_noise in found
        for file, strength in zip(files, [*strengths, *[1.0] * len(files)], strict=False)
    )


def prompts_of(settings: Settings) -> list[SamplePrompt]:
    """Return each image to generate, those without a seed of their own too. Raises ValueError, one sentence each."""
    options = settings[GenerateOptions]
    card = card_of(settings.script.family)
    defaults = replace(
        card.sample_defaults,
        negative_prompt=options.negative_prompt,
        width=options.width or card.generated_size[0],
        height=options.height or card.generated_size[1],
        steps=card.sample_defaults.steps if options.steps is None else options.steps,
        scale=card.sample_defaults.scale if options.scale is None else options.scale,
        guidance=card.sample_defaults.guidance if options.guidance is None else options.guidance,
        sampler=options.sampler if card.has("noise_schedule") else None,
        seed=None if options.image_seed == NEW_SEED else options.image_seed,
        control_images=tuple(options.control_image_path),
        frames=card.sample_defaults.frames if options.frames is None else options.frames,
        fps=card.sample_defaults.fps if options.fps is None else options.fps,
        flow_shift=card.sample_defaults.flow_shift if options.shift is None else options.shift,
        start_image=options.image_path or None,
        end_image=options.end_image_path or None,
        control_clip=options.control_path or None,
    )
    found: list[tuple[Callable[[object], str], SamplePrompt]] = []
    for number, line in enumerate(options.prompt, 1):
        about = partial(_about_line, number if len(options.prompt) > 1 else None)
        try:
            found.append((about, prompt_of_line(line, defaults, card.capabilities)))
        except ValueError as error:
            raise ValueError(about(error)) from error
    if options.prompt_file:
        file = settings.read_once(read_prompt_file, Path(options.prompt_file))
        if wrong := file.problems(card.capabilities):
            raise ValueError("\n".join(each.replace("sample_prompts:", "prompt_file:", 1) for each in wrong))
        in_file = enumerate(file.prompts(defaults), 1)
        found += [(partial(_about_entry, file.path, number), prompt) for number, prompt in in_file]
    if problems := [about(why) for about, prompt in found for why in _size_problems(prompt, card)]:
        raise ValueError("\n".join(problems))
    return [
        replace(prompt, seed=None if prompt.seed is None else prompt.seed + number)
        for prompt in (with_effect(prompt, card.capabilities) for _, prompt in found)
        for number in range(options.images_per_prompt)
    ]


def batches_of(images: Sequence[SamplePrompt], options: GenerateOptions, card: FamilyCard) -> list[list[SamplePrompt]]:
    """Return the images of prompts_of as batches, each of one prompt: at most batch_size, as equal in number as
    possible, so that they take the least memory."""
    count = options.images_per_prompt
    together = options.batch_size if card.has("batches") else 1
    size = math.ceil(count / math.ceil(count / together))
    of_prompts = (images[first : first + count] for first in range(0, len(images), count))
    return [[*each[first : first + size]] for each in of_prompts for first in range(0, count, size)]


def _about_line(number: int | None, problem: object) -> str:
    """Return a message about a prompt of `prompt`; its number is None if it is the only one."""
    return f"prompt: {problem}" if number is None else f"prompt: number {number}, {problem}"


def _about_entry(file: Path, number: int, problem: object) -> str:
    return f"prompt_file: '{file}', prompt {number}: {problem}"


def _size_problems(prompt: SamplePrompt, card: FamilyCard) -> Iterator[str]:
    multiple = card.side_multiple
    if card.clips and (fewer := card.clips.fitting(prompt.frames)) != prompt.frames:
        step = card.clips.frame_step
        choice = f"{fewer} or {fewer + step}"
        yield f"frames {prompt.frames} is not a multiple of {step}, plus one; choose {choice}"
    for name in ("width", "height"):
        if (side := getattr(prompt, name)) % multiple or not side:
            below = max(side - side % multiple, multiple)
            yield f"{name} {side} is not a multiple of {multiple}; choose {below} or {below + multiple}"


def prompt_warnings(settings: Settings) -> list[str]:
    """Return a message for everything in readable prompts that has no effect, or an unexpected one."""
    options = settings[GenerateOptions]
    card = card_of(settings.script.family)
    found = [f"prompt: {what}" for line in options.prompt for what in (*dropped_words(line), *_idle(line, card))]
    if options.prompt_file:
        of_file = settings.read_once(read_prompt_file, Path(options.prompt_file)).remarks()
        found += [text.replace("sample_prompts:", "prompt_file:", 1) for text in of_file]
    if card.has("batches") and options.batch_size > options.images_per_prompt:
        found.append(
            f"batch_size: {options.batch_size} is more than images_per_prompt = {options.images_per_prompt}, and only "
            "images of one prompt are generated together"
        )
    variant = model_checks.model_variant(settings[ModelOptions])
    for prompt in prompts_of(settings):
        found += [f"{name}: {text}" for name, text in card.prompt_remarks(prompt, variant)]
    return list(dict.fromkeys(found))


def _idle(line: str, card: FamilyCard) -> Iterator[str]:
    """Yield a message for each option of a line that has no effect in a family."""
    keys = line_keys(line)
    for option in LINE_OPTIONS:
        if option.key in keys and not option.works_with(card.capabilities):
            yield f"--{option.letters} has no effect for {card.title}"


def problems(settings: Settings, *more: Check) -> list[Problem]:
    """Return every reason not to generate, each once, including the findings of the checks `more`."""
    found = settings.problems()
    for checks in (CHECKS, more):
        found += found_by(checks, settings.without(found))
    return list(dict.fromkeys(found))


def prompts(valid: Settings) -> Iterator[str]:
    prompts_of(valid)
    for cell in cells_of(valid):
        prompts_of(cell.settings)
    yield from ()


def prompt_images(script: Script, options: GenerateOptions) -> Iterator[str]:
    """Check that the images can be read that prompts are generated with if they name none."""
    by_default = SamplePrompt(
        control_images=tuple(options.control_image_path),
        start_image=options.image_path,
        end_image=options.end_image_path,
        control_clip=options.control_path,
    )
    for name, path in with_effect(by_default, card_of(script.family).capabilities).image_files:
        if why := file_problem(name, path):
            yield f"{'control_path' if name == CONTROL_CLIP.key else name}: {why}"


def adapters(valid: Settings) -> Iterator[str]:
    """Check that the files are adapters for this family, as far as their headers show."""
    for name in FILES_OF.values():
        of_cells = [getattr(cell.settings[GenerateOptions], name) for cell in cells_of(valid)]
        for file in dict.fromkeys([*getattr(valid[GenerateOptions], name), *itertools.chain(*of_cells)]):
            if why := model_checks.why_no_lora(Path(file), valid.script.family):
                yield f"{name}: {why}"


def image_dir(options: GenerateOptions) -> Iterator[str]:
    folder = Path(options.image_dir)
    if why := why_no_folder(folder):
        yield f"image_dir: '{folder}' cannot be written to ({why}); choose another folder"


CHECKS: tuple[Check, ...] = (
    *model_checks.OF_BASE_MODEL,
    prompts,
    reading(prompt_images, Script, GenerateOptions),
    adapters,
    reading(image_dir, GenerateOptions),
)
