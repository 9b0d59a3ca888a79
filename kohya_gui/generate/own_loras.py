"""The user's LoRAs of a family: those that runs trained and those in the folders of the tab Models, with previews."""

from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.models.library import LORA, Library
from kohya_gui.runs.past_runs import tab_of
from kohya_gui.server.json_routes import NotFound, allowed_file, get
from kohya_gui.server.media_files import send_media
from sd_scripts.formats.images.generated_files import GENERATED_TYPES
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.formats.models.trigger_words import trigger_words
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import state_folder

MOST_RUNS = 500
"""Newest runs whose LoRAs are listed."""
BESIDE = (".preview", "")
"""What stands between the name of a model file and the extension of its preview, as other programs name previews."""
OPTION = "lora_weights"


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    own = OwnLoras(queue, allowed_paths)
    return [
        get("generate/adapters", own.listed),
        get("generate/adapter-preview", own.preview),
        get("generate/trigger", own.trigger),
    ]


class OwnLoras:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._library = Library(state_folder() / "models.json", allowed_paths)

    def listed(self, request: Request) -> list[dict[str, str]]:
        """Return the last LoRA of each run of a family, the newest run first, and then those in folders with models;
        `run` is empty for these."""
        family = request.query_params.get("family")
        files: dict[str, str] = {}
        for row in self._queue.store.rows(MOST_RUNS):
            if row.family != family or not row.results or tab_of(row).method != "lora":
                continue
            path = row.results[-1]
            if not self._allowed_paths.problem(OPTION, path) and Path(path).is_file():
                files.setdefault(path, row.name)
        found, _ = self._library.scan()
        for each in found:
            if any((use.family, use.option) == (family, LORA) for use in each.uses):
                files.setdefault(str(each.path), "")
        return [{"path": path, "run": run, "words": _words(Path(path))} for path, run in files.items()]

    def trigger(self, request: Request) -> dict[str, str]:
        """Return the trigger words of a file, "" if it shows none or cannot be read."""
        return {"words": _words(allowed_file(self._allowed_paths, OPTION, request.query_params.get("path", "")))}

    def preview(self, request: Request) -> Response:
        """Return the image or clip next to a file, or the last sample of the run that trained it."""
        path = allowed_file(self._allowed_paths, OPTION, request.query_params.get("path", ""))
        names = (f"{path.stem}{middle}{suffix}" for middle in BESIDE for suffix in GENERATED_TYPES)
        shown = next((file for name in names if (file := path.with_name(name)).is_file()), None) or self._sample(path)
        if shown is None:
            raise NotFound("There is no preview of this file")
        return send_media(request, allowed_file(self._allowed_paths, OPTION, shown))

    def _sample(self, path: Path) -> Path | None:
        rows = self._queue.store.rows(MOST_RUNS)
        run = next((row for row in rows if str(path) in map(str, row.results or ())), None)
        samples = self._queue.watch(run.id).refresh().samples if run else ()
        return next((sample.path for sample in reversed(samples) if sample.path.is_file()), None)


def _words(path: Path) -> str:
    try:
        status = path.stat()
        return _words_of(path, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):  # Generate reports the problem
        return ""


@lru_cache(maxsize=2 * MOST_RUNS)
def _words_of(path: Path, changed: int, size: int) -> str:
    return trigger_words(read_header(path).metadata)
