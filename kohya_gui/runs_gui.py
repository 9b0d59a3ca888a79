"""The run column of a training tab: Start, Print, messages, and the slot of the live view (live.js)."""

import gradio as gr

SLOT = '<div data-live="{place}"></div>'
"""Slot for the page's single live view while this tab is shown."""


class RunPanel:
    """The run column; the tab connects its Start and Print buttons."""

    def __init__(self, tab: str) -> None:
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button("Start training", variant="primary", elem_id=f"{tab}-start", scale=3)
            self.print = gr.Button("Print command", elem_id=f"{tab}-print", scale=2)
        self.message = gr.HTML(elem_id=f"{tab}-message")
        self.command = gr.Code(
            label="Command",
            interactive=False,
            wrap_lines=True,
            visible=False,
            elem_id=f"{tab}-command",
            elem_classes="command",
        )
        self.view = gr.HTML(SLOT.format(place=tab), elem_id=f"{tab}-run", apply_default_css=False)
        # runs.js (Studio.load) fills in the number of a past run and presses the button
        self.past = gr.Textbox(elem_id=f"{tab}-load-run", elem_classes="offstage", container=False)
        self.load = gr.Button("Load settings", elem_id=f"{tab}-load", elem_classes="offstage")
        # fields.js fills in the answer to a question of Start and presses Start again
        self.answer = gr.Textbox(elem_id=f"{tab}-answer", elem_classes="offstage", container=False)
