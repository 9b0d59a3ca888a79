"""Work the GUI saves Gradio: each component's parameters are inspected once, and a page is recorded once."""

import inspect
import json
import threading
from typing import Any

import gradio as gr
import pytest
from gradio import blocks as gradio_blocks
from gradio import component_meta
from gradio.state_holder import SessionState, StateHolder

from kohya_gui.access.request_checks import JOIN, refusal


@pytest.mark.parametrize("module", [gradio_blocks, component_meta], ids=lambda module: module.__name__)
def test_parameters_of_a_component_are_looked_up_once(module: Any) -> None:
    asked = module.inspect
    assert asked.signature(gr.Textbox.__init__) == inspect.signature(gr.Textbox.__init__)
    assert asked.signature(gr.Textbox.__init__) is asked.signature(gr.Textbox.__init__)
    assert asked.getfullargspec(gr.Textbox.__init__) == inspect.getfullargspec(gr.Textbox.__init__)
    assert asked.isgeneratorfunction is inspect.isgeneratorfunction


def test_requests_that_a_new_page_sends_together_create_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    with gr.Blocks() as page:
        name = gr.Textbox()
        name.change(lambda value: value, name, name)
    StateHolder().set_blocks(page)
    made: list[SessionState] = []
    first = threading.Event()
    make = SessionState.__init__

    def count(state: SessionState, blocks: gr.Blocks) -> None:
        made.append(state)
        first.wait(0.2)  # all the others are here by then
        make(state, blocks)

    monkeypatch.setattr(SessionState, "__init__", count)
    body = json.dumps({"fn_index": 0, "data": ["cat"], "session_hash": "new"}).encode()
    answers: list[object] = []
    requests = [threading.Thread(target=lambda: answers.append(refusal(page, JOIN, body))) for _ in range(8)]
    for request in requests:
        request.start()
    for request in requests:
        request.join()
    assert answers == [None] * 8
    assert len(made) == 1
