"""Finds the model families: every folder here that has a `card.py`. Loads without torch."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import sd_scripts.families
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.networks.network_types import is_built_in, read_items

if TYPE_CHECKING:
    from sd_scripts.families.cards.family_card import ComponentCard, FamilyCard


@functools.cache
def cards() -> tuple[FamilyCard, ...]:
    """Return the card of every family, in the order of the page."""
    names = [module.name for module in pkgutil.iter_modules(sd_scripts.families.__path__) if module.ispkg]
    unsorted: list[FamilyCard] = [
        module_of(name, "card").CARD for name in names if find_spec(f"{sd_scripts.families.__name__}.{name}.card")
    ]
    return tuple(sorted(unsorted, key=lambda card: (card.order, card.name)))


def names() -> set[str]:
    """Return the names of all families."""
    return {card.name for card in cards()}


def component_options() -> tuple[str, ...]:
    """Return the options that name the file of a component, of any family; families may share one."""
    return tuple(dict.fromkeys(component.option for card in cards() for component in card.files.separate_components))


def component_card(family: str, option: str) -> ComponentCard | None:
    """Return the component of a family that has a file of its own, named by this option; None if there is none."""
    return next((each for each in card_of(family).files.separate_components if each.option == option), None)


def card_of(name: str) -> FamilyCard:
    """Return the card of a family. Raises KeyError if none has this name."""
    return {card.name: card for card in cards()}[name]


def selected_family(family: str, values: Mapping[str, Any]) -> str:
    """Return the family that settings for a family are for: itself, or one derived from it that an option selects."""
    for card in cards():
        if card.derived_from == family and card.selected_by:
            option, value = card.selected_by
            if values.get(option) == value:
                return card.name
    return family


def card_by_network(network_module: str) -> FamilyCard | None:
    """Return the card of the family for whose LoRAs, besides those of derived families, this network_module is;
    None if no or every family's."""
    matching = [card for card in cards() if network_module.endswith(card.network_modules) and not card.derived_from]
    return matching[0] if len(matching) == 1 else None


def is_built_in_network(network: NetworkOptions) -> bool:
    """Whether a built-in adapter is trained, and not an external network."""
    name = network.module
    named = not name or any(name in card.network_modules for card in cards())
    return named or is_built_in(name, read_items(network.network_args))


def preset_family(preset: str) -> str:
    """Return the family whose name a preset's begins with; empty if there is none."""
    return max((name for name in names() if preset.startswith(f"{name}_")), key=len, default="")


def common_family(found: Collection[str]) -> str | None:
    """Return the family among these that files of all of them may be of; None if their layouts differ."""
    return next((name for name in found if all(card_of(name).trains(other) for other in found)), None)


def module_of(family: str, name: str) -> ModuleType:
    """Import a module of a family's folder: its miniature, its full size."""
    return import_module(f"sd_scripts.families.{family}.{name}")
