"""Routes under /studio that answer in JSON; an error is one sentence."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class NotFound(ValueError):
    """The requested thing does not exist, or no longer does."""


def get(path: str, answer: Callable[[Request], Any]) -> Route:
    """Return a GET route; an answer of None becomes 204, a Response is sent as it is."""

    def route(request: Request) -> Response:
        return _respond(lambda: answer(request))

    return Route(f"/studio/{path}", route, methods=["GET"])


def post(path: str, answer: Callable[[Request, Mapping[str, Any]], Any]) -> Route:
    """Return a POST route, whose `answer` also gets the request's JSON object."""

    async def route(request: Request) -> Response:
        try:
            body = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": "The request is not a JSON object"}, 400)
        return await run_in_threadpool(_respond, lambda: answer(request, body))

    return Route(f"/studio/{path}", route, methods=["POST"])


def upload(path: str, answer: Callable[[Request, bytes], Any], *, most: int) -> Route:
    """Return a POST route, whose `answer` also gets the request's bytes, at most so many."""

    async def route(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                return JSONResponse({"error": f"The file is larger than {most >> 20} MB"}, 413)
        return await run_in_threadpool(_respond, lambda: answer(request, bytes(body)))

    return Route(f"/studio/{path}", route, methods=["POST"])


def _respond(work: Callable[[], Any]) -> Response:
    try:
        answer = work()
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 404 if isinstance(error, NotFound) else 400)
    if isinstance(answer, Response):
        return answer
    headers = {"Cache-Control": "no-store"}
    return Response(status_code=204, headers=headers) if answer is None else JSONResponse(answer, headers=headers)
