"""Visibility rules of a form, applied by the browser itself (visibility.js) so that no click waits for the server.

Every control is in the page from the start. CSS rules hide them, since a folded panel has no elements yet.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sd_scripts.options.spec import Option


def watched(options: Mapping[str, Option]) -> list[str]:
    """Return the options whose values decide whether others are shown or enabled."""
    names: dict[str, None] = {}
    for option in options.values():
        switches = [name for name in (*option.switches, option.offered_with, *(option.shown_for or ())[:1]) if name]
        own = [option.name] if option.offered_with or option.active_with or option.shown_for else []
        names |= dict.fromkeys([*switches, *(option.active_with or ())[:1], *own])
    return [name for name in names if name in options]


def _usual(option: Option) -> Any:
    """Return the default as the value of the control."""
    return "\n".join(map(str, option.default)) if option.many else option.default


def rules(
    options: Mapping[str, Option],
    panels: Mapping[str, Sequence[str]],
    advice: Mapping[str, str],
    family: str,
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the rules of a form: `panels` and `advice` by element id, the initial family and values."""
    return {
        "options": {
            name: {
                "families": option.families,
                "noted": [families for families, _ in option.family_notes],
                "masters": [name for name in option.switches if name in options],
                "offeredWith": option.offered_with if option.offered_with in options else None,
                "shownFor": option.shown_for,
                "activeWith": option.active_with,
                "default": _usual(option) if option.active_with or option.shown_for else None,
            }
            for name, option in options.items()
        },
        "panels": {panel: list(names) for panel, names in panels.items()},
        "advice": dict(advice),
        "watched": (names := watched(options)),
        "family": family,
        "values": {name: values[name] for name in names},
    }


def as_element(forms: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rules of all forms as a hidden element of the page."""
    return f'<div hidden data-forms="{escape(json.dumps(forms))}"></div>'
