"""The options as a page of Markdown: `python -m sd_scripts.options.document > docs/options.md`."""

import inspect
import sys

from sd_scripts.options.catalog import FAMILY_TITLES, FILE_ONLY, METHOD_TITLES, SCRIPTS
from sd_scripts.options.command_line import ConfigFileOptions
from sd_scripts.options.legacy import LegacyOptions
from sd_scripts.options.settings import Groups
from sd_scripts.options.spec import ALL_FAMILIES, ALL_METHODS, KINDS, Option, OptionGroup, each_option

OPENING = """# Options

Every option of the training scripts, made from the code by `python -m sd_scripts.options.document`.

An option has one name: the flag is `--name`, the key in a TOML file is `name`, and the page shows it by its label.
A bool is switched off with `--no-name`. Defaults come first, then the file of `--config_file`, then the flags.
A file holds only what differs from the defaults; its tables are headings and mean nothing.
An unknown flag is an error, an unknown key in a file is a warning that names the nearest option.
A value of the wrong type or out of range is told in one sentence; the run ends with exit code 2 before a model loads.
"""

DIFFERENCES = """## Different from sd-scripts on purpose

- A file is checked as the flags are: type, choices and range. There, any value of a file was taken as it stood.
- `lr_warmup_steps = 100.0` in a file is 100 steps. There it was a hundred times the run.
- SDXL's `clip_skip` of 3 or more reads an earlier layer of the text encoders. There, SDXL reads the layer before the
  last whatever `clip_skip` says.
- `max_token_length` may be any number in a file: its whole pieces of 75 tokens count, three at most, with a warning.
- `--no-x` undoes what a file switched on; `resolution` may be a number or an array in a file.
- `--output_config` never writes `huggingface_token` and `wandb_api_key`.
- A 0 that means something, such as `max_grad_norm = 0`, is kept when a JSON file of kohya_ss is opened.

In full training:

- `prior_loss_weight` counts. There, SDXL's full training took every image as one of the training images.
- A rate of 0 leaves a text encoder, or a block of `block_lr`, as it is: it neither learns nor is rounded.
- What does not learn is saved in the digits that the base model's file has, whatever `mixed_precision` is.
- `full_bf16` rounds by chance (stochastically) with every optimizer, so that small updates are not lost; there, only
  Adafactor did, and only with `fused_backward_pass`.
- `fused_backward_pass` goes with every optimizer that does not find one rate from all gradients together. Each gradient
  is then shortened by itself.
- `blocks_to_swap` needs `full_bf16` and goes with every optimizer; gradients may be accumulated.
"""


def page() -> str:
    groups: Groups = tuple(dict.fromkeys(group for script in SCRIPTS for group in script.groups))
    shown: Groups = (ConfigFileOptions, *groups, LegacyOptions)
    sections = [_section(group) for group in shown]
    return "\n".join([OPENING, *sections, _without_effect(groups), DIFFERENCES])


def _section(group: type[OptionGroup]) -> str:
    works = [o for o in each_option(group) if not o.not_yet]
    where = "These are keys of a file and controls of the page, not flags.\n" if group in FILE_ONLY else ""
    rows = [f"| `{o.name}` | {_kind(o)} | {_default(o)} | {_cell(_help(o))}{_effect(o)} |" for o in works]
    table = ["| option | type | default | meaning |", "|---|---|---|---|", *rows]
    return "\n".join([f"## {group.title}\n", f"{inspect.getdoc(group)}\n", *([where] if where else []), *table, ""])


def _without_effect(groups: Groups) -> str:
    """The honest list."""
    without_effect = [o for group in groups for o in each_option(group) if o.not_yet]
    rows = [f"| `{o.name}` | {_cell(o.help)} | {_cell(o.not_yet)} |" for o in without_effect]
    told = "Understood so that existing files and commands work, and told with a warning when set."
    return "\n".join(["## Without effect\n", f"{told}\n", "| option | elsewhere | here |", "|---|---|---|", *rows, ""])


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
        return "off"  # no option is on by itself: a flag would have to be a negation
    return f"`{o.default}`" if o.default != "" else "empty"


def _help(o: Option) -> str:
    return " ".join([o.help, *(f"*{METHOD_TITLES[method]}*: {note}" for method, note in o.notes.items())])


def _effect(o: Option) -> str:
    where = [FAMILY_TITLES[family] for family in o.families] if o.families != ALL_FAMILIES else []
    where += [METHOD_TITLES[method] for method in o.methods] if o.methods != ALL_METHODS else []
    masters = [f"`{name}`" for name in o.masters]
    when = f" While {' or '.join(masters)} is on." if masters else ""
    return when + (f" *{', '.join(where)} only.*" if where else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    print(page(), end="")
