"""Reject malformed requests to Gradio's routes, which would answer 500 as if the server were at fault."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import orjson
from gradio.blocks import BlockFunction, Blocks
from gradio.components import Component, Radio
from gradio.state_holder import SessionState
from starlette.responses import JSONResponse, Response

from kohya_gui.server.json_routes import value_problem

JOIN, RUN = "/gradio_api/queue/join", "/gradio_api/run/"
"""Routes that call a function of the page."""
NO_OBJECT = "The request is not a JSON object"
_MAKING = threading.Lock()


def refusal(blocks: Blocks, path: str, body: bytes) -> Response | None:
    """Return the error response for a body that the page would not send; None for a valid one."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _answer(422, _why_not_read(body) or NO_OBJECT)
    if not isinstance(asked, dict):
        return _answer(422, NO_OBJECT)
    why = _wrong_call(blocks, asked) if path.startswith((JOIN, RUN)) else ""
    return _answer(400, why) if why else None


def _why_not_read(body: bytes) -> str:
    """Return what is wrong with values that Python's reader accepts and Gradio's does not."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return value_problem(asked) if isinstance(asked, dict) else ""


def _answer(status: int, why: str) -> Response:
    """Return an error in the format of Gradio's own routes, so that the page can show it."""
    return JSONResponse({"error": why, "detail": why}, status)


def _wrong_call(blocks: Blocks, asked: dict[str, Any]) -> str:
    index, values, session = asked.get("fn_index"), asked.get("data"), asked.get("session_hash")
    function = blocks.fns.get(index) if type(index) is int else None
    if function is None or not function.fn:
        return "fn_index: unknown function; reload the page"
    if not isinstance(values, list) or not isinstance(session, str) or not session:
        return "data must be a list and session_hash a string"
    if asked.get("batched"):
        return "batched: not supported"
    return "" if function.cancels else _wrong_values(blocks, function, values, session)


def _page_of(blocks: Blocks, session: str) -> SessionState:
    """Return Gradio's record of one page. A new page sends a dozen requests together, and without a lock each of them
    makes a record of its own, a tenth of a second of computing."""
    with _MAKING:
        return blocks.state_holder[session]


def _wrong_values(blocks: Blocks, function: BlockFunction, values: Sequence[Any], session: str) -> str:
    if len(values) < len(function.inputs):
        return f"data: {len(values)} values given, {len(function.inputs)} expected"
    known = _page_of(blocks, session)
    for number, (block, value) in enumerate(zip(function.inputs, values, strict=False)):
        if isinstance(block, Component) and not block.stateful and not block.data_model:
            if isinstance(block, Radio) and value is None:
                return f"data[{number}]: must be one of {', '.join(str(choice[1]) for choice in block.choices)}"
            try:
                known.get(block._id, block).preprocess(value)  # with the choices of this session's page
            except Exception as error:  # components raise anything for invalid values
                return f"data[{number}]: {error}"
    return ""
