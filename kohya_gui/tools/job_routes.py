"""Routes under /studio that tools which work on a folder of images share: a hint, and the job from a try to its end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.server.json_routes import NotFound, get, post
from kohya_gui.tools.job_form import ImagesJob
from kohya_gui.tools.job_queue import JobQueue
from kohya_gui.tools.tool_job import shown_state
from sd_scripts.runs.store import state_folder

TRIED = 5
THUMBNAIL = "tried-{}.jpg"
Values = Mapping[str, Any]


def job_routes(
    job: ImagesJob,
    allowed_paths: AllowedPaths,
    *,
    described: Callable[[], Mapping[str, Any]],
    hints: Callable[[Values, Sequence[str], AllowedPaths], Mapping[str, Any]],
    problems: Callable[[Values, Sequence[str], AllowedPaths], list[str]],
    secrets: Callable[[Values], Mapping[str, str]] = lambda body: {},
) -> list[Route]:
    """Return the routes of a tool whose job writes its result as `NAME.json` and images of a try as `tried-N.jpg`."""
    form, name = job.form, job.name
    waiting = JobQueue(job, state_folder())

    def look(request: Request, body: Values) -> Mapping[str, Any]:
        return hints(form.read_values(_values(body)), form.chosen_images(body.get("images")), allowed_paths)

    def start(request: Request, body: Values) -> None:
        """Start a job with the form's values, after those that run and wait; with `try` immediately, on some images
        and without writing."""
        values = form.read_values(_values(body))
        images = form.chosen_images(body.get("images"))
        values["try_images"] = TRIED if body.get("try") else 0
        if mistakes := problems(values, images, allowed_paths):
            raise form.links.refusal(mistakes)
        if values["try_images"]:
            job.start(values, images, secrets(body))
        else:
            waiting.add(values, images, secrets(body))

    def resume(request: Request, body: Values) -> None:
        """Continue the job that was stopped, with its settings."""
        record = job.record
        if not record.get("values"):
            raise NotFound("There is no job to continue")
        if mistakes := problems(record["values"], record["images"], allowed_paths):
            raise form.links.refusal(mistakes)
        waiting.add(record["values"], record["images"], secrets(body))

    def state(request: Request) -> dict[str, Any] | None:
        """Return the job if it changed since `known`."""
        if job.watched is None:
            return {"known": job.version, "state": "", "over": True, "waiting": waiting.described()}
        run_state = job.watched.refresh()
        listed = waiting.described()
        known = f"{job.version}.{'.'.join(each['id'] for each in listed)}"
        if request.query_params.get("known") == known:
            return None
        return {
            "known": known,
            **shown_state(run_state, form.links),
            "waits_for": job.waits_for,
            "result": job.result(f"{name}.json") if run_state.over else None,
            "waiting": listed,
        }

    def thumbnail(request: Request) -> Response:
        """Return a small image of those that were tried."""
        number, when = request.path_params["number"], request.query_params.get("when", "")
        which = f"{number}-{when}" if when in ("before", "after") else str(number)
        file = job.watched.folder.path / THUMBNAIL.format(which) if job.watched else None
        if file is None or not file.is_file():
            raise NotFound("There is no such image")
        return Response(file.read_bytes(), media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    return [
        get(name, lambda request: described()),
        get(f"{name}/job", state),
        get(f"{name}/image/{{number:int}}", thumbnail),
        post(f"{name}/look", look),
        post(f"{name}/start", start),
        post(f"{name}/resume", resume),
        post(f"{name}/stop", lambda request, body: job.stop()),
        post(f"{name}/remove", lambda request, body: waiting.remove(body.get("id"))),
    ]


def _values(body: Values) -> Values:
    values = body.get("values")
    return values if isinstance(values, Mapping) else {}
