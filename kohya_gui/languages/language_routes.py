"""The route of the page's texts in other languages."""

import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.languages.catalogues import LANGUAGES, catalogue
from kohya_gui.server.json_routes import NotFound, Unchanging, get


def routes() -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    return [get("language/{language}", _send)]


def _send(request: Request) -> Response:
    language = request.path_params["language"]
    if language not in LANGUAGES:
        raise NotFound("There is no catalogue of this language")
    return _answer(language).send(request)


@functools.cache
def _answer(language: str) -> Unchanging:
    return Unchanging(catalogue(language))
