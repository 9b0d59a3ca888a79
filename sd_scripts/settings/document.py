"""Writes the options as a page of Markdown: `python -m sd_scripts.settings.document > docs/options.md`."""

import inspect
import sys

from sd_scripts.families.cards.registry import cards
from sd_scripts.options.generating.generate import GenerateOptions
from sd_scripts.options.spec import ALL_METHODS, KINDS, Option, OptionGroup
from sd_scripts.settings.catalog import FAMILY_TITLES, FILE_ONLY, SCRIPT_TITLES, SCRIPTS
from sd_scripts.settings.command_line import ConfigFileOptions, PlanOptions
from sd_scripts.settings.compat.generate_flags import OtherFlags
from sd_scripts.settings.compat.legacy import LegacyOptions
from sd_scripts.settings.compat.musubi import MusubiOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

OPENING = """# Options

All options of the scripts that train and generate, generated from the code by `python -m sd_scripts.settings.document`.

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

OF_OTHER_PROGRAMS: Groups = (LegacyOptions, MusubiOptions, OtherFlags)


def page() -> str:
    groups: Groups = tuple(dict.fromkeys(group for script in SCRIPTS for group in script.groups))
    shown: Groups = (ConfigFileOptions, PlanOptions, *groups, GenerateOptions, *OF_OTHER_PROGRAMS)
    sections = [_section(group) for group in shown]
    return "\n".join([OPENING, *sections, _without_effect(groups), DIFFERENCES])


def _section(group: type[OptionGroup]) -> str:
    works = [o for o in each_option(group) if not o.not_yet or group in OF_OTHER_PROGRAMS]
    where = "These are keys of a file and controls on the page, not flags.\n" if group in FILE_ONLY else ""
    rows = [f"| `{o.name}` | {_kind(o)} | {_default(o)} | {_cell(_help(o))}{_effect(o)} |" for o in works]
    table = ["| option | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"## {group.title}\n", f"{inspect.getdoc(group)}\n", *([where] if where else []), *table, ""])


def _without_effect(groups: Groups) -> str:
    """Return the section of accepted options that do nothing."""
    without_effect = [o for group in groups for o in each_option(group) if o.not_yet]
    rows = [f"| `{o.name}` | {_cell(o.help_for())} | {_cell(o.not_yet)} |" for o in without_effect]
    intro = "Accepted so that existing files and commands work. Setting one prints a warning."
    head = ["| option | in sd-scripts | here |", "|---|---|---|"]
    return "\n".join(["## Without effect\n", f"{intro}\n", *head, *rows, ""])


def _kind(o: Option) -> str:
    if o.choices:
        kind = ", ".join(f"`{choice}`" for choice in o.choices)
    else:
        kind = "list of text" if o.many and o.type is str else "list of numbers" if o.many else KINDS[o.type]
    return f"{kind}, {o.within[0]} to {o.within[1]}" if o.within else kind


def _default(o: Option) -> str:
    if o.default is None or o.default == []:
        return "unset"
    if o.type is bool:
        return "on" if o.default else "off"
    return f"`{o.default}`" if o.default != "" else "empty"


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
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    print(page(), end="")
