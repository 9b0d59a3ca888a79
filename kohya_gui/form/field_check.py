"""The check of a training tab's field when it loses the focus, by the rules of Start."""

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
    """Return the problem of a field's text; empty if it is valid. Files are not checked."""
    name = body.get("name")
    text = body.get("value")
    if not (isinstance(name, str) and isinstance(text, str)):
        raise ValueError("The request does not name a field and its text")
    problems = settings_of({**body, "values": {name: text}}).wrong_values()
    return {"problem": problems[0].removeprefix(f"{name}: ") if problems else ""}
