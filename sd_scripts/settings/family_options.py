"""Joins options with the cards of the families: for which an option works, with which default, choices and notes."""

import functools
from collections.abc import Iterator
from dataclasses import replace

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.spec import Families, Option, OptionGroup, declared_options


def each_option(group: type[OptionGroup]) -> Iterator[Option]:
    """Return the options of a group in the order of their declaration."""
    return iter(_options(group))  # type: ignore[arg-type]


@functools.cache
def _options(group: type[OptionGroup]) -> tuple[Option, ...]:
    own = [card for card in cards() if group in card.groups]
    return tuple(_joined(option, own) for option in declared_options(group))


def _joined(option: Option, cards_with_group: list[FamilyCard]) -> Option:
    name = option.name
    capable = [card for card in cards_with_group or cards() if option.needs in ("", *card.capabilities)]
    own_choices = {card.name: card.choices[name] for card in cards() if name in card.choices}
    words = dict.fromkeys(word for choices in own_choices.values() for word in choices)
    family_choices = {
        word: tuple(family for family, choices in own_choices.items() if word in choices) for word in words
    }
    return replace(
        option,
        family_defaults={card.name: card.defaults[name] for card in cards_with_group if name in card.defaults},
        choices=(*option.choices, *family_choices) if option.choices else (),
        families=tuple(card.name for card in capable),
        family_notes=tuple((_noted_with(card.name, name), card.notes[name]) for card in cards() if name in card.notes),
        family_choices=family_choices,
    )


def _noted_with(family: str, option: str) -> Families:
    """Return the families that a family's note on an option is for: it, and those derived from it without their own."""
    return (family, *(card.name for card in cards() if card.derived_from == family and option not in card.notes))
