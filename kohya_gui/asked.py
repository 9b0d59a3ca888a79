"""What is wrong with the body of a request to a route of Gradio's, which answers 500 to it as if we were at fault."""

from collections.abc import Sequence
from typing import Any

import orjson
from gradio.blocks import BlockFunction, Blocks
from gradio.components import Component, Radio
from starlette.responses import JSONResponse, Response

JOIN, RUN = "/gradio_api/queue/join", "/gradio_api/run/"
"""Routes that run a function of the page."""


def refusal(blocks: Blocks, path: str, body: bytes) -> Response | None:
    """What a body gets that the page would not have sent; None for any other."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    if not isinstance(asked, dict):
        return _answer(422, "The request is not a JSON object")
    why = _wrong_call(blocks, asked) if path.startswith((JOIN, RUN)) else ""
    return _answer(400, why) if why else None


def _answer(status: int, why: str) -> Response:
    """As Gradio's own routes tell a mistake, so that the page can show it."""
    return JSONResponse({"error": why, "detail": why}, status)


def _wrong_call(blocks: Blocks, asked: dict[str, Any]) -> str:
    index, values, session = asked.get("fn_index"), asked.get("data"), asked.get("session_hash")
    function = blocks.fns.get(index) if type(index) is int else None
    if function is None or not function.fn:
        return "fn_index: the page has no such function; reload it"
    if not isinstance(values, list) or not isinstance(session, str) or not session:
        return "data must be a list, and session_hash a text"
    if asked.get("batched"):
        return "batched: no function of the page takes a batch"
    return "" if function.cancels else _wrong_values(blocks, function, values, session)


def _wrong_values(blocks: Blocks, function: BlockFunction, values: Sequence[Any], session: str) -> str:
    if len(values) < len(function.inputs):
        return f"data: there are {len(values)} values, and the function takes {len(function.inputs)}"
    known = blocks.state_holder[session]
    for number, (block, value) in enumerate(zip(function.inputs, values, strict=False)):
        if isinstance(block, Component) and not block.stateful and not block.data_model:
            if isinstance(block, Radio) and value is None:
                return f"data[{number}]: one of {', '.join(str(choice[1]) for choice in block.choices)} must be chosen"
            try:
                known.get(block._id, block).preprocess(value)  # with the choices that its page has now
            except Exception as error:  # what a component makes of a value that it cannot have may be anything
                return f"data[{number}]: {error}"
    return ""
