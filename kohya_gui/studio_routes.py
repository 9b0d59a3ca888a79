"""All routes under /studio."""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.routing import Route

from kohya_gui import (
    browse,
    checkpoints_routes,
    compile_cache_routes,
    doctor_routes,
    field_check,
    generate_routes,
    live_routes,
    lora_tools_routes,
    measure_routes,
    plan_card,
    prompt_editor,
    publish_routes,
)
from kohya_gui.allowed_paths import AllowedPaths
from kohya_gui.field_links import FieldLinks
from sd_scripts.runs.queue import RunQueue


def routes(
    queue: RunQueue, allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks] = MappingProxyType({})
) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""
    return [
        *publish_routes.routes(queue, allowed_paths),
        *checkpoints_routes.routes(queue, allowed_paths),
        *live_routes.routes(queue, allowed_paths, links),
        *plan_card.routes(allowed_paths, links),
        *field_check.routes(),
        *doctor_routes.routes(queue),
        *measure_routes.routes(queue, allowed_paths, links),
        *prompt_editor.routes(links),
        *browse.routes(allowed_paths),
        *compile_cache_routes.routes(allowed_paths),
        *lora_tools_routes.routes(queue, allowed_paths),
        *generate_routes.routes(queue, allowed_paths),
    ]
