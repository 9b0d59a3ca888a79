"""The tab Captions: routes under /studio that describe its form, look at folders, and start and follow a job."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.server.json_routes import upload
from kohya_gui.tools.captions import FORM, CaptionJob, described, hints, problems
from kohya_gui.tools.job_routes import job_routes
from sd_scripts.formats.documents import parse_toml
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.compat.captioning import read_document

KEY = "OPENAI_API_KEY"
LARGEST_SETTINGS = 1 << 20


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    job = CaptionJob(FORM, queue)
    return [
        *job_routes(job, allowed_paths, described=described, hints=hints, problems=problems, secrets=_secrets),
        upload("captions/settings", _settings, most=LARGEST_SETTINGS),
    ]


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
    values = {name: FORM.options[name].read(value) for name, value in read_document(document).items()}
    if wrong := [f"{name}: {why}" for name, value in values.items() if (why := FORM.options[name].problem(value))]:
        raise FORM.links.refusal(wrong)
    return {"values": values}
