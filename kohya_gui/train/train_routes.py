"""The routes of the Simple view of a training tab (static/train): what the settings of the form add up to, and which
presets fit the GPU."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form import recognise
from kohya_gui.form.configuration import families_of
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.form.presets import BASE_MODEL, KEPT_BY_PRESETS
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.runs.plan_process import PlanProcess
from kohya_gui.server.json_routes import post
from kohya_gui.tabs import TABS
from kohya_gui.train.fits import Fits
from kohya_gui.train.length import LENGTHS, Images, images_in, settings_for
from kohya_gui.train.starting_point import deviations, presets_of, starting_point
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of, component_options
from sd_scripts.settings import preflight
from sd_scripts.settings.settings import Problem

DATA = ("train_data_dir", "dataset_config", "in_json")
"""Options that name the images."""
CARDS: Mapping[str, Sequence[str]] = {
    "images": (
        *DATA,
        *("num_repeats", "reg_data_dir", "conditioning_data_dir", "control_directory"),
        *("caption_prefix", "caption_extension"),
    ),
    "model": (BASE_MODEL, "vae", *component_options()),
}
"""Card -> the options it is about; all others belong to the card "how"."""


def routes(allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks], process: PlanProcess) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""

    def look(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        return described(body, allowed_paths, links.get(str(body.get("tab")), NO_LINKS))

    fits = Fits(process)
    return [post("train/look", look), post("train/fit", lambda _, body: fits.of(body))]


def described(body: Mapping[str, Any], allowed_paths: AllowedPaths, links: FieldLinks = NO_LINKS) -> dict[str, Any]:
    """Return the contents of the cards for a form's draft: the preset, the deviations from it, the lengths for the
    images, the files of the model, with those that lie next to it, and by card the problems that keep the run from
    starting. Raises ValueError for a body that is not a form."""
    settings = settings_of(body)
    tab, family = str(body["tab"]), settings.script.family
    values, card = settings.values(), card_of(family)
    preset = starting_point(settings, tab, str(body.get("preset") or ""))
    outside = allowed_paths.problems_of(settings)
    images = None if outside else _images(values, card)
    model = str(values[BASE_MODEL] or "")
    problems = [Problem(*_split(each)) for each in outside] or preflight.problems(settings)
    return {
        "preset": preset.name if preset else "",
        "presets": [{"name": each.name, "title": each.title, "about": each.about} for each in presets_of(tab, family)],
        "changes": deviations(settings, preset) if preset else [],
        "lengths": {name: settings_for(images, seen) for name, seen in LENGTHS.items()} if images else {},
        "images": images and vars(images),
        "files": [
            {
                "name": each.option,
                "title": each.title,
                "optional": each.optional,
                "beside": str(recognise.part_beside(model, each.option, family, allowed_paths.holds) or ""),
            }
            for each in card.files.separate_components
        ],
        "controls": "control_directory" in settings.options,
        "methods": [name for name, each in TABS.items() if family in families_of(each.method)],
        "problems": _by_card(problems, values, links),
        "carried": KEPT_BY_PRESETS,
    }


def _split(sentence: str) -> tuple[tuple[str, ...], str]:
    name, _, text = sentence.partition(": ")
    return (name,), text


def _images(values: Mapping[str, Any], card: FamilyCard) -> Images | None:
    folder = values["train_data_dir"]
    if not isinstance(folder, str) or values["dataset_config"] or values.get("in_json"):
        return None  # a file decides how often images are trained
    try:
        return images_in(Path(os.path.expanduser(folder.strip())), clips=card.clips is not None)
    except (OSError, ValueError):  # the checks report it
        return None


def _by_card(
    problems: Sequence[Problem], values: Mapping[str, Any], links: FieldLinks
) -> dict[str, list[dict[str, Any]]]:
    """Return the problems of each card: the first option and the sentence; `unset` if that option has no value yet."""
    found: dict[str, list[dict[str, Any]]] = {"images": [], "model": [], "how": []}
    for problem in problems:
        name = problem.names[0] if problem.names else ""
        card = next((card for card, names in CARDS.items() if name in names), "how")
        found[card].append({"name": name, "text": links.words(problem), "unset": not values.get(name)})
    return found
