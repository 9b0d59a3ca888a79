"""What a family needs: its base model and components, where they can be had, and which are on this machine."""

from collections.abc import Sequence
from typing import Any

from huggingface_hub import constants

from kohya_gui.models.library import LibraryFile, Use
from kohya_gui.models.remote import name_for
from sd_scripts.families.cards.family_card import FamilyCard, HubFile
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.options.model import MODEL
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.family_options import each_option


def needs(family: str, library: Sequence[LibraryFile]) -> list[dict[str, Any]]:
    """Return the parts of a family's models for the page. Raises ValueError for an unknown family."""
    if family not in names():
        raise ValueError("family: not a model family; choose one from the list")
    card = card_of(family)
    return [
        {
            "option": option,
            "title": title_of(card, option),
            "optional": not _is_required(card, option),
            "files": [_shown(each) for each in card.hub.files if each.option == option],
            "here": [
                {"path": str(each.path), "name": each.path.name}
                for each in library
                if Use(family=family, option=option) in each.uses
            ],
        }
        for option in _options(card)
    ]


def hub_file(family: object, repo: object, file: object) -> HubFile:
    """Return the file that a request names. Raises ValueError if the family does not list it."""
    files = card_of(family).hub.files if isinstance(family, str) and family in names() else ()
    found = next((each for each in files if (each.repo, each.file) == (repo, file)), None)
    if found is None:
        raise ValueError("file: not one of the files of this model family")
    return found


def title_of(card: FamilyCard, option: str) -> str:
    """Return the heading of the files that an option names."""
    component = next((each for each in card.files.components if each.option == option != MODEL), None)
    if component is None and option != MODEL:
        return next(each.label for each in each_option(NetworkOptions) if each.name == option)
    words = component.title if component else card.files.base_model
    bare = words.partition(" ")[2] if words.startswith(("a ", "an ", "the ")) else words
    return bare[:1].upper() + bare[1:]


def _options(card: FamilyCard) -> list[str]:
    separate = [component.option for component in card.files.separate_components]
    return list(dict.fromkeys((MODEL, *separate, *(each.option for each in card.hub.files))))


def _is_required(card: FamilyCard, option: str) -> bool:
    separate = {component.option for component in card.files.separate_components if not component.optional}
    return option == MODEL or option in separate


def _shown(file: HubFile) -> dict[str, Any]:
    return {
        "repo": file.repo,
        "file": file.file,
        "name": name_for(file.repo, file.file),
        "about": file.about,
        "gigabytes": file.gigabytes,
        "licence": file.licence,
        "gated": file.gated,
        "page": f"{constants.ENDPOINT}/{file.repo}",
    }
