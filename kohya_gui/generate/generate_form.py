"""The form of the tab Generate as data: the options of each family's script, by panel."""

from collections.abc import Mapping
from typing import Any

from kohya_gui.form.controls import given, kind, shown
from sd_scripts.families.cards.family_card import FamilyCard
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
from sd_scripts.settings.sweeps import SWEPT

HIDDEN = ("resident", "idle_seconds", "run_dir", "compile_auto", "control_directory")
"""Options that the page sets itself, or that have no meaning here."""
ROWS = ("lora_weights", "lora_multiplier", "control_image_path", "sweep")
"""Options with a list of rows instead of their controls: adapters, control images and values to compare."""
MEDIA = ("image_path", "end_image_path", "control_path")
"""Options whose image or clip is shown below their field."""
IMAGES = (
    *("prompt", "negative_prompt", "width", "height", "frames", "fps", "steps", "scale", "guidance", "shift"),
    *("sampler", *MEDIA),
    *("image_seed", "images_per_prompt", "batch_size"),
)
WIDE = ("prompt", "negative_prompt")
"""Options whose controls take the whole row."""
USUAL = ("width", "height", "frames", "fps", "steps", "scale", "guidance", "shift")
"""Options whose field shows the family's own value while it is empty."""
RANDOM = "random each time"


def options_of(family: str) -> dict[str, Option]:
    """Return the options of a family's script that the page has, by name."""
    script = script_for(family, GENERATE)
    return {
        o.name: o.for_family(family)
        for group in script.groups
        for o in each_option(group)
        if not o.not_yet and family in o.families and o.name not in HIDDEN
    }


def form() -> list[dict[str, Any]]:
    """Return each family that generates, with the panels of its form."""
    return [
        {
            "name": script.family,
            "title": FAMILY_TITLES[script.family],
            "multiple": card_of(script.family).side_multiple,
            "controls": card_of(script.family).has(CONTROLS.needs),
            "swept": _swept(script.family),
            "panels": [
                {"title": title, "open": title == "Model", "fields": [_field(o, script.family) for o in fields]}
                for title, fields in _panels(script.family)
                if fields
            ],
        }
        for script in GENERATE_SCRIPTS
    ]


def _swept(family: str) -> list[tuple[str, str]]:
    """Return name and label of each option whose values can be compared, the usual ones first."""
    options = options_of(family)
    return [(name, options[name].label) for name in SWEPT if name in options]


def _panels(family: str) -> list[tuple[str, list[Option]]]:
    options = options_of(family)
    card = card_of(family)
    own_groups = {*card.groups}.intersection(script_for(family, GENERATE).groups) - {ControlOptions}
    groups = {o.name: group for group in script_for(family, GENERATE).groups for o in each_option(group)}
    names_by_title = {
        "": IMAGES,
        "Model": (
            "pretrained_model_name_or_path",
            *card.page.model_panel,
            *(c.option for c in card.files.separate_components),
            *(name for name in options if groups[name] is ModelOptions),
        ),
        "Memory and precision": ("dtype", *(name for name in options if groups[name] in own_groups)),
        CompileOptions.title: tuple(name for name in options if groups[name] is CompileOptions),
        "More": tuple(n for n in options if groups[n] in (GenerateOptions, ControlOptions) and n not in ROWS),
    }
    panels = []
    for title, names in names_by_title.items():
        panels.append((title, [options.pop(name) for name in names if name in options]))  # the first panel gets it
    return panels


def _field(option: Option, family: str) -> dict[str, Any]:
    family_default = _usual(option.name, card_of(family)) if option.name in USUAL else ""
    return {
        "name": option.name,
        "label": option.label,
        "help": option.help_for(GENERATE),
        "kind": "lines" if option.many and option.type is str else kind(option),
        "choices": [str(choice) for choice in option.choices],
        "value": shown(option, DEFAULTS.get(option.name, option.default)),
        "path": option.path,
        "media": option.name in MEDIA,
        "placeholder": RANDOM if option.name == "image_seed" else option.placeholder or str(family_default or ""),
        "wide": option.name in WIDE or option.path,
        "nullable": option.nullable,
        "shown_when": option.shown_when if option.shown_when != option.name else None,
    }


def _usual(name: str, card: FamilyCard) -> Any:
    if name in ("width", "height"):
        return card.generated_size[name == "height"]
    if name == "fps" and card.clips:
        return card.sample_defaults.fps or card.clips.fps
    return getattr(card.sample_defaults, {"shift": "flow_shift"}.get(name, name))


def values_of(family: str, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a form as typed, without options that have their defaults."""
    options = options_of(family)
    values = {name: given(options[name], value) for name, value in typed.items() if name in options}
    if lines := values.get("prompt"):  # as in a prompt file
        values["prompt"] = [line for line in lines if not (isinstance(line, str) and is_comment(line))]
    return {name: value for name, value in values.items() if value != options[name].default or name in DEFAULTS}


def form_values(family: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the values of their controls in the form."""
    options = options_of(family)
    return {name: shown(options[name], value) for name, value in values.items() if name in options}
