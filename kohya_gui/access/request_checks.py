"""Reject malformed requests to Gradio's routes, which would answer 500 as if the server were at fault."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import orjson
from gradio.block_function import BlockFunction
from gradio.blocks import Blocks
from gradio.components import Component, Radio
from gradio.state_holder import SessionState
from starlette.responses import JSONResponse, Response

from kohya_gui.server.json_routes import value_problem

JOIN, RUN = "/gradio_api/queue/join", "/gradio_api/run/"
"""Routes that call a function of the page."""
NO_OBJECT = "The request is not a JSON object"
_CREATING = threading.Lock()


def refusal(blocks: Blocks, path: str, body: bytes) -> Response | None:
    """Return the error response for a body that the page would not send; None for a valid one."""
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _answer(422, _value_problem(body) or NO_OBJECT)
    if not isinstance(call, dict):
        return _answer(422, NO_OBJECT)
    problem = _call_problem(blocks, call) if path.startswith((JOIN, RUN)) else ""
    return _answer(400, problem) if problem else None


def _value_problem(body: bytes) -> str:
    """Return the problem of values that Python's reader accepts and Gradio's does not."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return value_problem(call) if isinstance(call, dict) else ""


def _answer(status: int, problem: str) -> Response:
    """Return an error in the format of Gradio's own routes, so that the page can show it."""
    return JSONResponse({"error": problem, "detail": problem}, status)


def _call_problem(blocks: Blocks, call: dict[str, Any]) -> str:
    index = call.get("fn_index")
    values = call.get("data")
    session = call.get("session_hash")
    function = blocks.fns.get(index) if type(index) is int else None
    if function is None or not function.fn:
        return "fn_index: unknown function; reload the page"
    if not isinstance(values, list) or not isinstance(session, str) or not session:
        return "data must be a list and session_hash a string"
    if call.get("batched"):
        return "batched: not supported"
    return "" if function.cancels else _values_problem(blocks, function, values, session)


def _page_of(blocks: Blocks, session: str) -> SessionState:
    """Return Gradio's record of one page. A new page sends a dozen requests together, and without a lock each of them
    creates a record of its own, a tenth of a second of computing."""
    with _CREATING:
        return blocks.state_holder[session]


def _values_problem(blocks: Blocks, function: BlockFunction, values: Sequence[Any], session: str) -> str:
    if len(values) < len(function.inputs):
        return f"data: {len(values)} values given, {len(function.inputs)} expected"
    page = _page_of(blocks, session)
    for number, (block, value) in enumerate(zip(function.inputs, values, strict=False)):
        if isinstance(block, Component) and not block.stateful and not block.data_model:
            if isinstance(block, Radio) and value is None:
                return f"data[{number}]: must be one of {', '.join(str(choice[1]) for choice in block.choices)}"
            try:
                page.get(block._id, block).preprocess(value)  # with the choices of this session's page
            except Exception as error:  # components raise anything for invalid values
                return f"data[{number}]: {error}"
    return ""
