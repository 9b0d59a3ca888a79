"""The tab LoRA tools: routes under /studio that describe the tools, look at files, and start and follow a job."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.recognise import size
from kohya_gui.server.json_routes import NotFound, download, get, post
from kohya_gui.tools.lora_tool_list import LoraTool
from kohya_gui.tools.lora_tools import (
    TOOLS,
    LoraToolJob,
    described_tools,
    hints,
    links_of,
    merged_rows,
    metadata_entries,
    problems,
    read_values,
    takes_rows,
)
from kohya_gui.tools.tool_job import shown_state
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.tools.lora_tools import REPORT


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    job = LoraToolJob(queue)

    def describe(request: Request) -> dict[str, Any]:
        return {"tools": described_tools()}

    def look(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        tool, typed = _form(body)
        return hints(tool, read_values(tool, typed), allowed_paths, chosen=typed)

    def start(request: Request, body: Mapping[str, Any]) -> None:
        tool, typed = _form(body)
        values = read_values(tool, typed)
        if mistakes := problems(tool, values, allowed_paths):
            raise links_of(tool).refusal(mistakes)
        job.start(tool, values)

    def state(request: Request) -> dict[str, Any] | None:
        """Return the job if it changed since `known`."""
        if job.watched is None or job.tool is None:
            return {"known": job.version, "tool": "", "over": True}
        run_state = job.watched.refresh()
        known = job.version
        if request.query_params.get("known") == known:
            return None
        report = job.result(REPORT) if run_state.state == "finished" else None
        return {"known": known, **_shown(job.tool, run_state), "report": report}

    def metadata(request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        path = str(body.get("path") or "").strip()
        return {"entries": metadata_entries(str(allowed_paths.check("model", path)))}

    def result(request: Request) -> FileResponse:
        saved = job.watched.refresh().saved if job.watched else []
        if not saved or not saved[-1].path.is_file():
            raise NotFound("The file of this job no longer exists")
        return download(allowed_paths.check("file", saved[-1].path))

    return [
        get("lora-tools", describe),
        get("lora-tools/job", state),
        get("lora-tools/file", result),
        post("lora-tools/look", look),
        post("lora-tools/start", start),
        post("lora-tools/stop", lambda request, body: job.stop()),
        post("lora-tools/metadata", metadata),
    ]


def _form(body: Mapping[str, Any]) -> tuple[LoraTool, dict[str, Any]]:
    """Return the tool that a request names, and the contents of its form."""
    tool = TOOLS.get(str(body.get("tool")))
    if tool is None:
        raise NotFound("There is no such tool")
    values = body.get("values")
    typed = dict(values) if isinstance(values, Mapping) else {}
    rows = typed.pop("rows", None)
    if takes_rows(tool):
        typed |= merged_rows([row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else [])
    return tool, typed


def _shown(tool: LoraTool, run_state: RunState) -> dict[str, Any]:
    """Return the state of the job for the page."""
    saved = [
        {"path": str(output.path), "name": output.path.name, "size": size(output.bytes), "there": output.path.is_file()}
        for output in run_state.saved
    ]
    return {
        "tool": tool.name,
        "title": tool.title,
        **shown_state(run_state, links_of(tool), lost=""),  # the page has a note of its own
        "saved": saved,
    }
