"""The catalogues of the page's texts in other languages, which language.js applies in the browser.

A folder for each language has JSON files of English -> translation, one for each part of the page. A text with values
has `{1}`, `{2}`... in place of them, in any order; `{1!}` in a translation is a value that is itself a text of the
page. Keys of options and texts in backticks stay as they are.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.server.json_routes import NotFound, Unchanging, get
from sd_scripts.formats.documents import parse_json

FOLDER = Path(__file__).parent
LANGUAGES = {"zh-CN": "zh_CN"}
"""Language, as browsers call it -> its folder."""


def routes() -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    return [get("language/{language}", _send)]


def _send(request: Request) -> Response:
    language = request.path_params["language"]
    if language not in LANGUAGES:
        raise NotFound("There is no catalogue of this language")
    return _answer(language).send(request)


def catalogue(language: str) -> dict[str, str]:
    """Return all texts of a language, by their English."""
    return {english: text for part in parts(language).values() for english, text in part.items()}


def parts(language: str) -> Mapping[str, Mapping[str, str]]:
    """Return the texts of each part of the page."""
    files = sorted((FOLDER / LANGUAGES[language]).glob("*.json"))
    return {file.stem: parse_json(file.read_text(encoding="utf-8")) for file in files}


@functools.cache
def _answer(language: str) -> Unchanging:
    return Unchanging(catalogue(language))
