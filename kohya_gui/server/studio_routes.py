"""All routes under /studio."""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset import dataset_routes
from kohya_gui.dataset.editing import routes as dataset_editing
from kohya_gui.form import browse, field_check, prompt_editor
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.generate import checkpoints_routes, generate_routes, regularisation_routes
from kohya_gui.languages import language_routes
from kohya_gui.models import models_routes
from kohya_gui.runs import gpu_routes, live_routes, measure_routes, plan_card
from kohya_gui.runs.plan_process import PlanProcess
from kohya_gui.settings import preset_routes
from kohya_gui.tools import (
    captions_routes,
    compile_cache_routes,
    doctor_routes,
    images,
    lora_tools_routes,
    publish_routes,
)
from kohya_gui.train import train_routes
from sd_scripts.runs.queue import RunQueue


def routes(
    queue: RunQueue, allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks] = MappingProxyType({})
) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""
    plans = PlanProcess()
    return [
        *publish_routes.routes(queue, allowed_paths),
        *checkpoints_routes.routes(queue, allowed_paths),
        *live_routes.routes(queue, allowed_paths, links),
        *gpu_routes.routes(queue),
        *plan_card.routes(allowed_paths, links, plans),
        *field_check.routes(),
        *language_routes.routes(),
        *train_routes.routes(allowed_paths, links, plans),
        *preset_routes.routes(),
        *doctor_routes.routes(queue),
        *measure_routes.routes(queue, allowed_paths, links),
        *prompt_editor.routes(queue, allowed_paths, links),
        *browse.routes(allowed_paths),
        *compile_cache_routes.routes(allowed_paths),
        *lora_tools_routes.routes(queue, allowed_paths),
        *captions_routes.routes(queue, allowed_paths),
        *images.routes(queue, allowed_paths),
        *models_routes.routes(queue, allowed_paths),
        *generate_routes.routes(queue, allowed_paths),
        *regularisation_routes.routes(queue, allowed_paths),
        *dataset_routes.routes(allowed_paths),
        *dataset_editing.routes(queue, allowed_paths),
    ]
