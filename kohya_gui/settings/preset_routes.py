"""The routes of the dialog "Presets" (presets.js): the product's, with memory and time where known, and the user's own.

An own preset is a settings file like any other, which names its family, leaves paths and names out, and begins with its
description as a comment: one file to share, which every program that reads TOML opens.
"""

import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.form.configuration import families_of, leaked_secrets, open_file
from kohya_gui.form.presets import (
    IN_NAME,
    KEPT_BY_PRESETS,
    PRESETS,
    first_preset,
    measured,
    own_preset,
    own_presets,
    preset_file,
    preset_title,
    preset_words,
)
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.server.json_routes import NotFound, download, get, post
from kohya_gui.tabs import TABS, Tab
from sd_scripts.families.cards.registry import preset_family
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.private import private_folder
from sd_scripts.formats.toml_files import toml_text
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

LONGEST = 300
"""Characters of a description."""
LARGEST = 200_000
"""Characters of a preset that is added from a file."""
MOST = 500
"""Own presets of a tab that are listed."""


def routes() -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    return [
        get("presets", listed),
        get("presets/file", sent),
        post("presets/save", save),
        post("presets/add", add),
        post("presets/remove", remove),
    ]


def listed(request: Request) -> dict[str, Any]:
    """Return the presets of a tab: the product's in the order of the families, then by memory, and the user's own."""
    tab = _tab(request.query_params.get("tab"))
    families = families_of(tab.method)
    order = {family: place for place, family in enumerate(families)}
    shipped = [_shipped(tab, path) for path in (PRESETS / tab.name).glob("*.toml")]
    shipped.sort(key=lambda each: (order.get(each["family"], len(order)), each["place"], each["gb"] or 0, each["name"]))
    return {"families": {family: FAMILY_TITLES[family] for family in families}, "presets": [*shipped, *_own(tab)]}


def _shipped(tab: Tab, path: Path) -> dict[str, Any]:
    family = preset_family(path.stem)
    title = preset_title(path).removeprefix(FAMILY_TITLES.get(family, "")).strip()
    memory = IN_NAME.search(path.stem)
    return {
        "name": path.stem,
        "title": title[:1].upper() + title[1:],
        "family": family,
        "about": preset_words(path),
        "gb": int(memory[1]) if memory else None,
        "place": 0 if path.stem == first_preset(family) else 1 if memory else 2,
        "measured": measured().get(f"{tab.name}/{path.stem}"),
        "own": False,
    }


def _own(tab: Tab) -> Iterator[dict[str, Any]]:
    for path in sorted(own_presets(tab.name).glob("*.toml"))[:MOST]:
        try:
            family = open_file(path, tab).family
            about = preset_words(path)
        except (ValueError, OSError):  # edited by hand; Open reports the problem
            continue
        yield {"name": path.stem, "title": preset_title(path), "family": family, "about": about, "own": True}


def sent(request: Request) -> Response:
    """Return a preset as a file to share."""
    tab = _tab(request.query_params.get("tab"))
    name = request.query_params.get("name", "")
    return download(_found(tab, name), f"{name}.toml")


def _found(tab: Tab, name: str) -> Path:
    shipped = {path.stem for path in (PRESETS / tab.name).glob("*.toml")}
    if name in shipped:
        return preset_file(tab.name, name)
    try:
        return own_preset(tab.name, name)
    except ValueError as error:
        raise NotFound(str(error)) from error


def save(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
    """Save the form's settings as an own preset. Raises ValueError, one sentence per line, for bad values."""
    settings = settings_of(body)
    return _write(_tab(body.get("tab")), body.get("name"), body.get("about"), settings, bool(body.get("replace")))


def add(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
    """Add a preset that somebody shared: `name` and `text` of its file. Raises ValueError, one sentence."""
    tab = _tab(body.get("tab"))
    text = body.get("text")
    if not isinstance(text, str) or len(text) > LARGEST:
        raise ValueError("This is not a preset: drop a .toml file of at most 200 kB")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "preset.toml"
        file.write_text(text, encoding="utf-8")
        opened = open_file(file, tab)
        about = preset_words(file)
    settings = from_values(script_for(opened.family, tab.method), opened.values)
    return _write(tab, body.get("name"), about, settings, bool(body.get("replace")))


def remove(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
    """Remove an own preset; returns its text, with which the page can add it again."""
    file = own_preset(_tab(body.get("tab")).name, str(body.get("name")))
    text = file.read_text(encoding="utf-8")
    file.unlink()
    return {"text": text}


def _write(tab: Tab, name: object, about: object, settings: Settings, replace: bool) -> dict[str, str]:
    slug = re.sub(r"[^a-z0-9]+", "_", str(name or "").lower()).strip("_")[:80]
    if not slug:
        raise ValueError("name: enter a name with letters or digits")
    if problems := [*settings.wrong_values(), *leaked_secrets(settings)]:
        raise ValueError("\n".join(problems))
    file = own_presets(tab.name) / f"{slug}.toml"
    if file.exists() and not replace:
        raise ValueError(f"name: there is a preset {slug} already; choose a different name, or replace it")
    values = {key: value for key, value in settings.saved().items() if key not in KEPT_BY_PRESETS}
    sentence = " ".join(str(about or "").split())[:LONGEST]
    head = "".join(f"# {line}\n" for line in textwrap.wrap(sentence, 118, break_long_words=False))
    try:
        private_folder(file.parent)
        write_whole(file, head + toml_text(values, settings.headings()))
    except OSError as error:
        raise ValueError(f"{file} cannot be written: {error.strerror}") from error
    return {"name": slug}


def _tab(name: object) -> Tab:
    tab = TABS.get(str(name))
    if tab is None:
        raise ValueError("The request does not name a training tab")
    return tab
