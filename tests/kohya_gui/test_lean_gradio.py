"""Work the GUI saves Gradio: each component's parameters are inspected once, a page is described and recorded once, and
an answer is the work of what it changes."""

import asyncio
import copy
import inspect
import json
import threading
from typing import Any

import gradio as gr
import pytest
from gradio import blocks as gradio_blocks
from gradio import component_meta
from gradio.context import Context
from gradio.state_holder import SessionState, StateHolder

from kohya_gui.access.request_checks import JOIN, refusal
from kohya_gui.server.lean_blocks import LeanBlocks


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


def test_a_page_is_described_once_until_it_is_served() -> None:
    with LeanBlocks() as page:
        gr.Textbox("cat")
    described = page.config["components"]
    page.title = "Cats"
    page.queue()  # a new application, as launch() creates it
    assert page.config["components"] is described
    assert page.config["title"] == "Cats"


def _answers(blocks: type[gr.Blocks], *steps: dict[str, Any]) -> tuple[list[Any], Any, int]:
    """Return the answers of one session's events, what the choice is then read as, and how many components were made.

    Each step has the outputs that its event gives, by name.
    """
    with blocks() as page:
        outputs: dict[str, Any] = {
            "name": gr.Textbox("cat", elem_id="name"),
            "kind": gr.Dropdown(["lora", "full"], value="lora"),
            "row": gr.Row(),
            "before": gr.State("nothing"),
            "draft": gr.BrowserState({}),
            "hint": gr.Markdown("seen"),
        }
        outputs["name"].change(lambda: None, None, list(outputs.values()))
    (function,) = page.fns.values()
    session = SessionState(page)
    first = Context.id
    events = [{outputs.get(name, name): copy.deepcopy(value) for name, value in step.items()} for step in steps]
    answers = [asyncio.run(page.postprocess_data(function, event, session)) for event in events]
    return answers, session[outputs["kind"]._id].preprocess("dora"), Context.id - first


def test_an_answer_equals_gradio_without_components_that_it_does_not_change() -> None:
    steps = (
        {"kind": gr.update(choices=["dora", "full"], value="dora")},
        {"name": "dog", "before": {"name": "cat"}, "draft": {}},
        {"row": gr.update(visible=False), "hint": None, "name": gr.skip()},
        {"before": gr.skip()},
    )
    answers, read, made = _answers(LeanBlocks, *steps)
    of_gradio, read_by_gradio, made_by_gradio = _answers(gr.Blocks, *steps)
    assert answers == of_gradio
    assert read == read_by_gradio == "dora"  # a choice of the first event
    assert made == 3
    assert made_by_gradio > 12


def test_html_that_an_answer_does_not_change_is_not_drawn_again() -> None:
    with LeanBlocks() as page:
        name = gr.Textbox()
        name.change(lambda: None, None, [name, gr.HTML("seen")])
    (function,) = page.fns.values()
    answer = asyncio.run(page.postprocess_data(function, {name: "dog"}, SessionState(page)))
    assert answer == ["dog", {"__type__": "update"}]  # Gradio sends new `props` for the HTML


@pytest.mark.parametrize("wrong", [{}, {"unknown": 1}, {"name": "dog", "unknown": 1}], ids=str)
def test_a_wrong_answer_is_reported_as_in_gradio(wrong: dict[str, Any]) -> None:
    errors = []
    for blocks in (gr.Blocks, LeanBlocks):
        with pytest.raises(ValueError, match=r"output|Component") as error:
            _answers(blocks, wrong)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
