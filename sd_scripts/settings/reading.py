"""Reads settings from values: translates old names, reports unknown ones and options without effect."""

import difflib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sd_scripts.families.cards.registry import card_of, selected_family
from sd_scripts.options.spec import Option, Remark
from sd_scripts.settings.catalog import FAMILY_TITLES, METHOD_TITLES, SCRIPT_TITLES, script_for
from sd_scripts.settings.checks.between import remarks_between
from sd_scripts.settings.compat.legacy import translate
from sd_scripts.settings.compat.musubi import always_there
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Problem, Script, Settings


def from_values(script: Script, *layers: Mapping[str, Any]) -> Settings:
    """Build settings from values by name; later layers override earlier ones.

    Wrong values are kept and reported by `Settings.problems()`; options without effect become remarks. An option of
    other programs may select a different family than the script's, unless the values name one.
    """
    values: dict[str, Any] = {}
    remarks: list[Remark] = []
    for layer in layers:
        translated, said = translate(_without_aliases(layer, card_of(script.family).aliases))
        values |= translated
        remarks += said
    if "family" not in values:
        script = script_for(selected_family(script.family, values), script.method)
    known = {o.name for group in script.groups for o in each_option(group)}
    if any("dit" in layer for layer in layers):
        here = {o.name for group in script.groups for o in each_option(group) if script.family in o.families}
        unsaid, said_of_them = always_there(values, here)
        values |= unsaid
        remarks += [Remark("dit", said_of_them)] if unsaid else []
    named = {name: str(values.pop(name, own)) for name, own in script.identity.items()}
    other = [(name, value) for name, value in named.items() if value != script.identity[name]]
    problems = [Problem((name,), _other_script(name, value, script)) for name, value in other]
    unknown = {name: value for name, value in values.items() if name not in known}
    settings = Settings(
        script, {name: value for name, value in values.items() if name in known}, unknown=unknown, problems=problems
    )
    if not settings.wrong_values():
        remarks += without_effect(settings)
    settings.remarks = [*remarks, *unknown_keys(unknown, known)]
    return settings


def unknown_keys(unknown: Mapping[str, Any], known: Collection[str]) -> Iterator[Remark]:
    """Yield a remark for each unknown key of a file, or table within a table; the last one counts those that follow."""
    more = len(unknown) - MOST_UNKNOWN
    for number, (name, value) in enumerate(itertools.islice(unknown.items(), MOST_UNKNOWN), 1):
        counted = f" (and {more:,} more unknown options)" if more > 0 and number == MOST_UNKNOWN else ""
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            yield Remark(f"[[{name}]]", f"is not read here; a list of tables belongs into dataset_config{counted}")
        elif isinstance(value, dict) and "." in name:
            yield Remark(f"[{name}]", f"is not read here; move its keys out of the inner table{counted}")
        else:
            yield Remark(name, unknown_text(name, known) + counted)


def _without_aliases(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the values under the names that the options have here; a value under its own name wins."""
    renamed = {aliases[name]: value for name, value in values.items() if name in aliases and value is not None}
    return renamed | {name: value for name, value in values.items() if name not in aliases}


MOST_UNKNOWN = 20
"""Unknown keys that are named: finding the nearest known name of each takes a millisecond."""


def _other_script(name: str, value: str, script: Script) -> str:
    """Return why a file that names a different family or method cannot be used."""
    titles = FAMILY_TITLES if name == "family" else SCRIPT_TITLES
    if value not in titles:
        return f"{value!r} is not one of {', '.join(titles)}"
    file = script_for(**{**script.identity, name: value}).file
    return f"these settings are for {titles[value]}; run {file}, or remove the line"


def unknown_text(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown option, with the nearest known name."""
    dashes = "--" if name.startswith("--") else ""
    nearest = difflib.get_close_matches(name.removeprefix(dashes), sorted(known), 1, 0.7)
    return "unknown option" + (f". Did you mean {dashes}{nearest[0]}?" if nearest else "")


def without_effect(settings: Settings) -> Iterator[Remark]:
    """Yield a remark for each option that was set but has no effect in this run."""
    script = settings.script
    values = settings.values()
    reported = set()
    for name, value in values.items():
        option = settings.options[name]
        if value != option.default and (why := _why_without_effect(option, script, values)):
            reported.add(name)
            yield Remark(name, why)
    yield from (
        Remark(name, why) for name, why in remarks_between(settings.filled, script.family) if name not in reported
    )


def _why_without_effect(option: Option, script: Script, values: Mapping[str, Any]) -> str:
    if option.not_yet:
        return f"has no effect: {option.not_yet}"
    if script.family not in option.families:
        return f"has no effect for {FAMILY_TITLES[script.family]}"
    if script.method in METHOD_TITLES and script.method not in option.methods:
        return f"has no effect in {METHOD_TITLES[script.method]}"
    if not option.is_on(values):
        return f"has no effect while {option.shown_when} is off"
    return ""
