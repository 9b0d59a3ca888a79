"""Routes under /studio by which the page changes a dataset."""

from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.editing import caption_routes, set_routes, token_routes
from sd_scripts.formats.editing.editor import Editor
from sd_scripts.formats.editing.journal import Journal
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import state_folder, store_path

FOLDER = "datasets"
"""In the state folder: what was changed, and who wrote a caption."""


def dataset_editor() -> Editor:
    """Return the editor with this user's journal; machines that share a home folder each have their own, as they have
    their own list of runs."""
    return Editor(Journal(state_folder() / FOLDER / store_path().stem))


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    editor = dataset_editor()
    return [
        *caption_routes.routes(editor, allowed_paths),
        *set_routes.routes(editor, queue, allowed_paths),
        *token_routes.routes(allowed_paths),
    ]
