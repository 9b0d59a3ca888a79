"""Routes under /studio by which the page changes a dataset."""

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.editing import caption_routes, crop_routes, mask_routes, set_routes, token_routes
from sd_scripts.machine.dataset_journal import dataset_editor
from sd_scripts.runs.queue import RunQueue


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    editor = dataset_editor()
    process = mask_routes.drawing_process()
    return [
        *caption_routes.routes(editor, allowed_paths),
        *set_routes.routes(editor, queue, allowed_paths),
        *mask_routes.routes(editor, allowed_paths, process),
        *crop_routes.routes(editor, queue, allowed_paths, process),
        *token_routes.routes(allowed_paths),
    ]
