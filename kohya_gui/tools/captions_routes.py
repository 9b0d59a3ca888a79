"""The tab Captions: routes under /studio that describe its form, look at folders, and start and follow a job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.server.json_routes import NotFound, get, post, upload
from kohya_gui.tools.caption_queue import CaptionQueue
from kohya_gui.tools.captions import LINKS, CaptionJob, chosen_images, described, hints, problems, read_values
from kohya_gui.tools.tool_job import shown_state
from sd_scripts.formats.documents import parse_toml
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import state_folder
from sd_scripts.settings.compat.captioning import OPTIONS, read_document

RESULT = "captions.json"
KEY = "OPENAI_API_KEY"
TRIED = 5
LARGEST_SETTINGS = 1 << 20
THUMBNAIL = "tried-{}.jpg"


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    job = CaptionJob(queue)
    waiting = CaptionQueue(job, state_folder())

    def look(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        return hints(read_values(_values(body)), chosen_images(body.get("images")), allowed_paths)

    def start(request: Request, body: Mapping[str, Any]) -> None:
        """Start a job with the form's values, after those that run and wait; with `try` immediately, on some images
        and without writing."""
        values = read_values(_values(body))
        images = chosen_images(body.get("images"))
        values["try_images"] = TRIED if body.get("try") else 0
        if mistakes := problems(values, images, allowed_paths):
            raise LINKS.refusal(mistakes)
        if values["try_images"]:
            job.start(values, images, _secrets(body))
        else:
            waiting.add(values, images, _secrets(body))

    def resume(request: Request, body: Mapping[str, Any]) -> None:
        """Continue the job that was stopped, with its settings."""
        record = job.record
        if not record.get("values"):
            raise NotFound("There is no job to continue")
        if mistakes := problems(record["values"], record["images"], allowed_paths):
            raise LINKS.refusal(mistakes)
        waiting.add(record["values"], record["images"], _secrets(body))

    def state(request: Request) -> dict[str, Any] | None:
        """Return the job if it changed since `known`."""
        if job.watched is None:
            return {"known": job.version, "state": "", "over": True, "waiting": waiting.described()}
        run_state = job.watched.refresh()
        listed = waiting.described()
        known = f"{job.version}.{'.'.join(each['id'] for each in listed)}"
        if request.query_params.get("known") == known:
            return None
        result = job.result(RESULT) if run_state.over else None
        return {
            "known": known,
            **shown_state(run_state, LINKS),
            "waits_for": job.waits_for,
            "result": result,
            "waiting": listed,
        }

    def thumbnail(request: Request) -> Response:
        """Return a small image of those that were tried."""
        number = request.path_params["number"]
        file = job.watched.folder.path / THUMBNAIL.format(number) if job.watched else Path()
        if not file.is_file():
            raise NotFound("There is no such image")
        return Response(file.read_bytes(), media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    return [
        get("captions", lambda request: described()),
        get("captions/job", state),
        get("captions/image/{number:int}", thumbnail),
        post("captions/look", look),
        post("captions/start", start),
        post("captions/resume", resume),
        post("captions/stop", lambda request, body: job.stop()),
        post("captions/remove", lambda request, body: waiting.remove(body.get("id"))),
        upload("captions/settings", _settings, most=LARGEST_SETTINGS),
    ]


def _values(body: Mapping[str, Any]) -> Mapping[str, Any]:
    values = body.get("values")
    return values if isinstance(values, Mapping) else {}


def _secrets(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the key of the endpoint, which only the process of the job gets."""
    key = body.get("key")
    return {KEY: key.strip()} if isinstance(key, str) and key.strip() else {}


def _settings(request: Request, content: bytes) -> dict[str, Any]:
    """Return the form's values for a settings file, ours or kohya_ss's."""
    try:
        document = parse_toml(content.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"The file is not TOML: {error}") from None
    values = read_document(document)
    if wrong := [
        f"{name}: {why}" for name, value in values.items() if (why := OPTIONS[name].problem(_read(name, value)))
    ]:
        raise LINKS.refusal(wrong)
    return {"values": {name: _read(name, value) for name, value in values.items()}}


def _read(name: str, value: Any) -> Any:
    return OPTIONS[name].read(value)
