"""The form of the tab Generate as data: the options of each family's script, by panel."""

from collections.abc import Mapping
from typing import Any

from kohya_gui.form.controls import given, kind, shown
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.dataset import ControlOptions
from sd_scripts.options.generating.generate import GENERATE, GenerateOptions
from sd_scripts.options.generating.prompt_lines import CONTROLS, is_comment
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.spec import Option
from sd_scripts.settings.catalog import FAMILY_TITLES, GENERATE_SCRIPTS, script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.generate_settings import DEFAULTS

HIDDEN = ("resident", "idle_seconds", "run_dir", "compile_auto", "control_directory")
"""Options that the page sets itself, or that say nothing here."""
ROWS = ("lora_weights", "lora_multiplier", "control_image_path")
"""Options with a list of rows instead of their controls: adapters and control images."""
IMAGES = (
    *("prompt", "negative_prompt", "width", "height", "steps", "scale", "guidance", "sampler"),
    *("image_seed", "images_per_prompt", "batch_size"),
)
MODEL = ("pretrained_model_name_or_path",)
SHORT = ("prompt", "negative_prompt")
"""Options whose controls take the whole row."""
USUAL = ("width", "height", "steps", "scale", "guidance")
"""Options whose field shows the family's own value while it is empty."""
RANDOM = "random each time"


def options_of(family: str) -> dict[str, Option]:
    """Return the options of a family's script that the page has, by name."""
    script = script_for(family, GENERATE)
    every = (o for group in script.groups for o in each_option(group))
    mine = (o for o in every if not o.not_yet and family in o.families and o.name not in HIDDEN)
    return {o.name: o.for_family(family) for o in mine}


def form() -> list[dict[str, Any]]:
    """Return each family that generates, with the panels of its form."""
    return [
        {
            "name": script.family,
            "title": FAMILY_TITLES[script.family],
            "multiple": card_of(script.family).side_multiple,
            "controls": card_of(script.family).has(CONTROLS.needs),
            "panels": [
                {"title": title, "open": title == "Model", "fields": [_field(o, script.family) for o in fields]}
                for title, fields in _panels(script.family)
                if fields
            ],
        }
        for script in GENERATE_SCRIPTS
    ]


def _panels(family: str) -> list[tuple[str, list[Option]]]:
    options, card = options_of(family), card_of(family)
    own = {*card.groups}.intersection(script_for(family, GENERATE).groups) - {ControlOptions}
    groups = {o.name: group for group in script_for(family, GENERATE).groups for o in each_option(group)}
    names = {
        "": IMAGES,
        "Model": (
            *MODEL,
            *card.page.model_panel,
            *(c.option for c in card.files.separate_components),
            *(name for name in options if groups[name] is ModelOptions),
        ),
        "Memory and precision": ("dtype", *(name for name in options if groups[name] in own)),
        CompileOptions.title: tuple(name for name in options if groups[name] is CompileOptions),
        "More": tuple(n for n in options if groups[n] in (GenerateOptions, ControlOptions) and n not in ROWS),
    }
    taken: set[str] = set()
    panels = []
    for title, wanted in names.items():
        fields = [name for name in dict.fromkeys(wanted) if name in options and name not in taken]
        taken |= {*fields}
        panels.append((title, [options[name] for name in fields]))
    return panels


def _field(option: Option, family: str) -> dict[str, Any]:
    usual = getattr(card_of(family).sample_defaults, option.name, None) if option.name in USUAL else None
    return {
        "name": option.name,
        "label": option.label,
        "help": option.help_for(GENERATE),
        "kind": "lines" if option.many and option.type is str else kind(option),
        "choices": [str(choice) for choice in option.choices],
        "value": shown(option, DEFAULTS.get(option.name, option.default)),
        "path": option.path,
        "placeholder": RANDOM if option.name == "image_seed" else option.placeholder or str(usual or ""),
        "wide": option.name in SHORT or option.path,
        "nullable": option.nullable,
        "shown_when": option.shown_when if option.shown_when != option.name else None,
    }


def values_of(family: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a form holds, without those that have their defaults."""
    options = options_of(family)
    read = {name: given(options[name], value) for name, value in typed.items() if name in options}
    if lines := read.get("prompt"):  # as in a prompt file
        read["prompt"] = [line for line in lines if not (isinstance(line, str) and is_comment(line))]
    return {name: value for name, value in read.items() if value != options[name].default or name in DEFAULTS}


def form_values(family: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the controls of the form hold them."""
    options = options_of(family)
    return {name: shown(options[name], value) for name, value in values.items() if name in options}
