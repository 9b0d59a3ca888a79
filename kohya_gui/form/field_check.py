"""The check of what is typed into a field of a training tab, when it is left, by the rules of Start."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.runs.plan_card import settings_of
from kohya_gui.server.json_routes import post


def routes() -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    return [post("field", check)]


def check(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with the text of a field; empty if nothing is. Files are not checked."""
    name, value = body.get("name"), body.get("value")
    if not (isinstance(name, str) and isinstance(value, str)):
        raise ValueError("The request does not name a field and its text")
    wrong = settings_of({**body, "values": {name: value}}).wrong_values()
    return {"problem": next((why.removeprefix(f"{name}: ") for why in wrong), "")}
