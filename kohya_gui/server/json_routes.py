"""Routes under /studio that answer in JSON or with a file; an error is one sentence."""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.documents import is_utf8
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunRow

DEEPEST = 40
"""Levels of lists and objects in a request."""
DONE = {"ok": True}
"""Answer of a POST route without data of its own."""
ID = re.compile("[0-9]{1,18}")
"""A valid row or file number: it must fit in 64 bits."""


class RowNumber(IntegerConvertor):
    """Path convertor for row numbers; anything else is a 404."""

    regex = ID.pattern


register_url_convertor("row", RowNumber())


class NotFound(ValueError):
    """The requested thing does not exist, or no longer does."""


class Refused(ValueError):
    """A form was refused; `html` is the message with links to the fields."""

    def __init__(self, text: str, html: str) -> None:
        super().__init__(text)
        self.html = html


def get(path: str, answer: Callable[[Request], Any]) -> Route:
    """Return a GET route; an answer of None becomes 204, a Response is sent unchanged."""

    def route(request: Request) -> Response:
        return _respond(lambda: answer(request))

    return Route(f"/studio/{path}", route, methods=["GET"])


def post(path: str, answer: Callable[[Request, Mapping[str, Any]], Any]) -> Route:
    """Return a POST route, whose `answer` also gets the request's JSON object; None becomes {"ok": true}."""

    async def route(request: Request) -> Response:
        try:
            body = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return Answer({"error": "The request is not a JSON object"}, 400)
        if problem := value_problem(body):
            return Answer({"error": problem}, 400)
        return await run_in_threadpool(_respond, lambda: answer(request, body) or DONE)

    return Route(f"/studio/{path}", route, methods=["POST"])


def writing(path: str, work: Callable[[Mapping[str, Any]], Any]) -> Route:
    """Return a POST route for work with files: a problem with one of them is answered in a sentence."""

    def answer(request: Request, body: Mapping[str, Any]) -> Any:
        try:
            return work(body)
        except OSError as error:
            raise ValueError(sentence_of(error)) from error

    return post(path, answer)


def value_problem(value: Any, name: str = "The request", depth: int = DEEPEST) -> str:
    """Return why parsed JSON cannot be used, preceded by its name in the request; "" if it can be."""
    if isinstance(value, str):
        return "" if is_utf8(value) else f"{name}: contains characters that are not valid Unicode; type it again"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{name}: not a finite number; type it again"
    if not isinstance(value, dict | list):
        return ""
    if not depth:
        return f"{name}: nested too deeply"
    items = value.items() if isinstance(value, dict) else ((name, item) for item in value)
    for key, item in items:
        if problem := value_problem(key, f"{name}: a name in it", depth) or value_problem(item, key, depth - 1):
            return problem
    return ""


class Answer(JSONResponse):
    """JSON with any contents: a file name that is not UTF-8 is replaced, a number that is not finite becomes null."""

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content)
        except TypeError:
            return super().render(_renderable(content))


class Unchanging:
    """JSON that stays the same while the GUI runs; browsers ask whether theirs is current."""

    def __init__(self, content: Any) -> None:
        self._body = bytes(Answer(content).body)
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'

    def send(self, request: Request) -> Response:
        headers = {"ETag": self._tag, "Cache-Control": "no-cache"}
        if self._tag in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self._body, media_type="application/json", headers=headers)


def _renderable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_renderable(str(name)): _renderable(item) for name, item in value.items()}
    return [_renderable(item) for item in value] if isinstance(value, list | tuple) else value


def upload(path: str, answer: Callable[[Request, bytes], Any], *, most: int) -> Route:
    """Return a POST route, whose `answer` also gets the request's bytes, at most `most`."""

    async def route(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                return Answer({"error": f"The file is larger than {most >> 20} MB"}, 413)
        return await run_in_threadpool(_respond, lambda: answer(request, bytes(body)))

    return Route(f"/studio/{path}", route, methods=["POST"])


def _respond(work: Callable[[], Any]) -> Response:
    try:
        answer = work()
    except ValueError as error:
        rendered = {"html": error.html} if isinstance(error, Refused) else {}
        return Answer({"error": str(error), **rendered}, 404 if isinstance(error, NotFound) else 400)
    if isinstance(answer, Response):
        return answer
    headers = {"Cache-Control": "no-store"}
    return Response(status_code=204, headers=headers) if answer is None else Answer(answer, headers=headers)


def row_of(request: Request, queue: RunQueue) -> RunRow:
    """Return the run that a request's path names. Raises NotFound."""
    return listed_run(queue, request.path_params["id"])


def listed_run(queue: RunQueue, id: object) -> RunRow:
    """Return the run with this id. Raises NotFound."""
    row = queue.store.row(id) if type(id) is int else None
    if row is None:
        raise NotFound("This run is no longer in the list")
    return row


def allowed_file(allowed_paths: AllowedPaths, option: str, path: str | Path) -> Path:
    """Return a path that the page may read. Raises NotFound for any other."""
    try:
        return allowed_paths.check(option, path)
    except ValueError as error:
        raise NotFound(str(error)) from error


def download(path: Path, name: str = "", *, once: bool = False) -> FileResponse:
    """Return a file as a download that browsers do not cache; `once` removes it after it was sent."""
    remove = BackgroundTask(path.unlink, missing_ok=True) if once else None
    return FileResponse(path, filename=name or path.name, headers={"Cache-Control": "no-store"}, background=remove)


def dated(name: str, path: Path) -> str:
    """Return `name-20260131-235959` for a file that was written then."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(path.stat().st_mtime))}"
