"""The preset that settings start from, and what differs from it.

A kohya_ss file names no preset: the one with the fewest differences makes it readable.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohya_gui.form.configuration import open_file
from kohya_gui.form.controls import kind, shown
from kohya_gui.form.presets import KEPT_BY_PRESETS, PRESETS, first_preset, preset_title, preset_words
from kohya_gui.tabs import TABS
from sd_scripts.families.cards.registry import preset_family
from sd_scripts.options.spec import Option
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.settings import Settings

IN_CARDS = frozenset(
    (*KEPT_BY_PRESETS, "max_train_epochs", "max_train_steps", "sample_every_n_epochs", "token_string", "init_word")
)
"""Options that have a field in one of the cards, which shows them whether or not they differ."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A preset of a family."""

    name: str
    title: str
    """Without the family's."""
    about: str
    values: Mapping[str, Any]
    """By option; the others have their defaults."""

    def value(self, option: Option) -> Any:
        """Return the option's value as the value of its control."""
        return shown(option, self.values.get(option.name, option.default_for(preset_family(self.name) or "")))


@functools.cache
def presets_of(tab: str, family: str) -> tuple[Preset, ...]:
    """Return the presets of a family on a training tab, the one of a fresh page first."""
    paths = [path for path in (PRESETS / tab).glob("*.toml") if preset_family(path.stem) == family]
    paths.sort(key=lambda path: (path.stem != first_preset(family), path.stem))
    return tuple(
        Preset(
            name=path.stem,
            title=_title(preset_title(path).removeprefix(FAMILY_TITLES[family]).strip()),
            about=preset_words(path),
            values=open_file(path, TABS[tab], family).values,
        )
        for path in paths
    )


def _title(words: str) -> str:
    return words[:1].upper() + words[1:]


def starting_point(settings: Settings, tab: str, named: str) -> Preset | None:
    """Return the preset of this name or, if the family has none of this name, the one with the fewest differences;
    None if the family has no presets."""
    presets = presets_of(tab, settings.script.family)
    chosen = next((preset for preset in presets if preset.name == named), None)
    return chosen or min(presets, key=lambda preset: len(deviations(settings, preset)), default=None)


def deviations(settings: Settings, preset: Preset) -> list[dict[str, Any]]:
    """Return the settings that differ from a preset, for the page: name, label, the kind of the control and
    its choices, and both values as values of the control."""
    values = settings.values()
    differing = []
    for name, option in settings.options.items():
        if name in IN_CARDS or option.not_yet or option.secret or settings.script.family not in option.families:
            continue
        value = shown(option, values[name])
        if str(value) != str(preset.value(option)):
            differing.append(
                {
                    "name": name,
                    "label": option.label.removesuffix(f" ({name})"),
                    "value": value,
                    "preset": preset.value(option),
                    "kind": kind(option),
                    "choices": [str(each) for each in option.choices],
                }
            )
    return differing
