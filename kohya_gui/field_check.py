"""The check of what is typed into a field of a training tab, when it is left, by the rules of Start."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.configuration import families_of, of_family
from kohya_gui.controls import given
from kohya_gui.json_routes import post
from kohya_gui.tabs import TABS
from sd_scripts.options.catalog import script_for
from sd_scripts.options.reading import from_values
from sd_scripts.options.spec import each_option


def routes() -> list[Route]:
    """Return the route, for `launch(app_kwargs={"routes": ...})`."""
    return [post("field", check)]


def check(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with the text of a field; empty if nothing is. Files are not looked at."""
    tab, family, name, value = (body.get(key) for key in ("tab", "family", "name", "value"))
    known = TABS.get(str(tab))
    if (
        known is None
        or family not in families_of(known.method)
        or not (isinstance(name, str) and isinstance(value, str))
    ):
        raise ValueError("The request does not name a tab, a model family and the text of a field")
    script = script_for(str(family), known.method)
    options = {o.name: o for group in script.groups for o in each_option(group)}
    if name not in options:
        return {"problem": ""}
    wrong = from_values(script, of_family({name: given(options[name], value)}, script)).wrong_values()
    return {"problem": next((why.removeprefix(f"{name}: ") for why in wrong), "")}
