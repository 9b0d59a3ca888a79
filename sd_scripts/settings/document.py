"""Writes docs/options.md and the pages in docs/options: `python -m sd_scripts.settings.document`."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.registry import cards
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import (
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    ControlOptions,
    DatasetOptions,
    ValidationOptions,
)
from sd_scripts.options.full import FullOptions, FusedOptions, ModelFileOptions
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.model import ModelOptions, Qwen3Options
from sd_scripts.options.networks.embedding import EmbeddingFileOptions, EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.saving import EmaOptions, HuggingFaceOptions, LoraFileOptions, SavingOptions
from sd_scripts.options.spec import ALL_METHODS, KINDS, Option, OptionGroup
from sd_scripts.options.training import DistributedOptions, ResumeOptions, TrainingOptions
from sd_scripts.settings.catalog import FAMILY_TITLES, FILE_ONLY, SCRIPT_TITLES, SCRIPTS
from sd_scripts.settings.command_line import ConfigFileOptions, PlanOptions
from sd_scripts.settings.compat.generate_flags import OtherFlags
from sd_scripts.settings.compat.legacy import LegacyOptions
from sd_scripts.settings.compat.musubi import MusubiOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

DOCS = Path(__file__).parents[2] / "docs"
GENERATED = "Generated from the code by `python -m sd_scripts.settings.document`; [all options](../options.md)."


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page about one concern, with the groups whose options it describes."""

    name: str
    title: str
    groups: Groups


MODEL = Page(name="model", title="Model", groups=(ModelOptions, Qwen3Options))
"""Groups that only one family has follow here."""
OTHER_PROGRAMS = Page(name="other_programs", title="Other programs", groups=(LegacyOptions, MusubiOptions, OtherFlags))
PAGES = (
    MODEL,
    Page(
        name="data",
        title="Data",
        groups=(
            *(DatasetOptions, BucketOptions, CaptionOptions, AugmentOptions, CacheOptions),
            *(ClipOptions, ControlOptions, ValidationOptions),
        ),
    ),
    Page(
        name="training",
        title="Training",
        groups=(TrainingOptions, FullOptions, NoiseOptions, FlowOptions, LossOptions, ResumeOptions),
    ),
    Page(name="network", title="Network and embeddings", groups=(NetworkOptions, EmbeddingOptions)),
    Page(name="optimizer", title="Optimizer", groups=(OptimizerOptions, LrSchedulerOptions, FusedOptions, EmaOptions)),
    Page(name="compile", title="torch.compile", groups=(CompileOptions, CompileMoreOptions)),
    Page(name="memory", title="Memory and CUDA", groups=(MemoryOptions, CudaOptions)),
    Page(
        name="saving",
        title="Saving",
        groups=(
            *(SavingOptions, LoraFileOptions, ModelFileOptions, EmbeddingFileOptions),
            *(MetadataOptions, HuggingFaceOptions),
        ),
    ),
    Page(name="monitoring", title="Samples and logging", groups=(SampleOptions, LoggingOptions)),
    Page(
        name="running",
        title="Starting a run",
        groups=(ConfigFileOptions, PlanOptions, RunOptions, DistributedOptions, LaunchOptions, SlurmOptions),
    ),
    Page(name="generate", title="Generate", groups=(GenerateOptions,)),
    OTHER_PROGRAMS,
)

OPENING = """# Options

All options of the scripts that train and generate, by concern, generated from the code by
`python -m sd_scripts.settings.document`.

An option has one name: the flag is `--name`, the key in a TOML file is `name`, and the page shows its label.
`--no-name` turns a bool off. Flags override the file of `--config_file`, which overrides the defaults.
A file contains only what differs from the defaults; its tables are headings without meaning, and a table within a table
is not read. An unknown flag is an error; an unknown key in a file is a warning that suggests the nearest option. A plan
and a refused run report warnings too.
A value of the wrong type or out of range ends the run with one sentence and exit code 2 before a model loads.
"""

DIFFERENCES = """## Different from sd-scripts on purpose

- Values in a file are checked like flags: type, choices and range. sd-scripts accepts any value in a file.
- `lr_warmup_steps = 100.0` in a file means 100 steps. In sd-scripts it means a hundred times the run.
- `clip_skip` of 3 or more uses an earlier layer of the text encoders. sd-scripts always uses the second to last layer
  of a model with two of them.
- `max_token_length` may be any number in a file; it is rounded down to a multiple of 75, at most 225, with a warning.
- `--no-x` turns off what a file turned on; `resolution` may be a number or an array in a file.
- `--output_config` never writes `huggingface_token` or `wandb_api_key`.
- Embeddings are saved as .safetensors; sd-scripts writes .pt unless `save_model_as` is set.
- Regularisation images keep their captions when a template replaces the others'.
- A meaningful 0, such as `max_grad_norm = 0`, is kept when a JSON file of kohya_ss is opened.

In full training:

- `prior_loss_weight` applies; sd-scripts may treat regularisation images as training images.
- A learning rate of 0 freezes a text encoder, or a block of `block_lr`: it is neither trained nor rounded.
- Frozen weights are saved in the precision of the base model's file, whatever `mixed_precision` is.
- `full_bf16` uses stochastic rounding with every optimizer, so that small updates are not lost; sd-scripts does so only
  with Adafactor and `fused_backward_pass`.
- `fused_backward_pass` works with every optimizer that does not derive one learning rate from all gradients. Each
  gradient is clipped on its own.
- `blocks_to_swap` needs `full_bf16` and works with every optimizer; gradients may be accumulated.
"""

WITHOUT_EFFECT = "Without effect"


def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/."""
    groups: Groups = tuple(dict.fromkeys(group for script in SCRIPTS for group in script.groups))
    texts = {f"options/{page.name}.md": "\n".join([*_opening(page), *map(_section, _groups(page))]) for page in PAGES}
    texts[f"options/{OTHER_PROGRAMS.name}.md"] += "\n" + "\n".join([_without_effect(groups), DIFFERENCES])
    return {"options.md": "\n".join([OPENING, *_index(), ""]), **texts}


def of_one_family() -> Groups:
    """Return the groups that no page names, which belong to a family's folder."""
    named = {group for page in PAGES for group in page.groups}
    return tuple(dict.fromkeys(group for script in SCRIPTS for group in script.groups if group not in named))


def _groups(page: Page) -> Groups:
    return (*page.groups, *of_one_family()) if page is MODEL else page.groups


def _opening(page: Page) -> list[str]:
    return [f"# Options: {page.title}\n", f"{GENERATED}\n"]


def _index() -> Iterator[str]:
    """Yield a table of all sections with the names of their options, for a search within the page."""
    yield "| page | section | options |"
    yield "|---|---|---|"
    for page in PAGES:
        for group in _groups(page):
            names = ", ".join(f"`{o.name}`" for o in _described(group))
            yield f"| [{page.title}](options/{page.name}.md) | {_link(page, group.title)} | {names} |"
    yield f"| [{OTHER_PROGRAMS.title}](options/{OTHER_PROGRAMS.name}.md) | {_link(OTHER_PROGRAMS, WITHOUT_EFFECT)} | |"


def _link(page: Page, heading: str) -> str:
    anchor = heading.lower().replace(".", "").replace(" ", "-")
    return f"[{heading}](options/{page.name}.md#{anchor})"


def _described(group: type[OptionGroup]) -> list[Option]:
    return [o for o in each_option(group) if not o.not_yet or group in OTHER_PROGRAMS.groups]


def _section(group: type[OptionGroup]) -> str:
    where = "These are keys of a file and controls on the page, not flags.\n" if group in FILE_ONLY else ""
    rows = [f"| `{o.name}` | {_kind(o)} | {_default(o)} | {_cell(_help(o))}{_effect(o)} |" for o in _described(group)]
    table = ["| option | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"## {group.title}\n", f"{inspect.getdoc(group)}\n", *([where] if where else []), *table, ""])


def _without_effect(groups: Groups) -> str:
    """Return the section of accepted options that do nothing."""
    without_effect = [o for group in groups for o in each_option(group) if o.not_yet]
    rows = [f"| `{o.name}` | {_cell(o.help_for())} | {_cell(o.not_yet)} |" for o in without_effect]
    intro = "Accepted so that existing files and commands work. Setting one prints a warning."
    head = ["| option | in sd-scripts | here |", "|---|---|---|"]
    return "\n".join([f"## {WITHOUT_EFFECT}\n", f"{intro}\n", *head, *rows, ""])


def _kind(o: Option) -> str:
    if o.choices:
        kind = ", ".join(f"`{choice}`" for choice in o.choices)
    else:
        kind = "list of text" if o.many and o.type is str else "list of numbers" if o.many else KINDS[o.type]
    return f"{kind}, {o.within[0]} to {o.within[1]}" if o.within else kind


def _default(o: Option) -> str:
    titles: dict[Any, list[str]] = {}
    for family, default in o.family_defaults.items():
        titles.setdefault(default, []).append(FAMILY_TITLES[family])
    own = (f"{_value(o, default)} for {', '.join(families)}" for default, families in titles.items())
    return "; ".join([_value(o, o.default), *own])


def _value(o: Option, value: Any) -> str:
    if value is None or value == []:
        return "unset"
    if o.type is bool:
        return "on" if value else "off"
    return f"`{value}`" if value != "" else "empty"


def _help(o: Option) -> str:
    return " ".join([o.help_for(), *(f"*{SCRIPT_TITLES[method]}*: {note}" for method, note in o.notes.items())])


def _effect(o: Option) -> str:
    where = [FAMILY_TITLES[family] for family in o.families] if len(o.families) < len(cards()) else []
    where += [SCRIPT_TITLES[method] for method in o.methods] if o.methods != ALL_METHODS else []
    switches = [f"`{name}`" for name in o.switches]
    when = f" While {' or '.join(switches)} is on." if switches else ""
    return when + (f" *{', '.join(where)} only.*" if where else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8", newline="\n")
