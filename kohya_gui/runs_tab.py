"""The Runs tab: the queue, past runs, and the live view of the selected one; drawn by runs.js."""

import gradio as gr

from kohya_gui.runs_gui import SLOT

NAME, TITLE = "runs", "Runs"


def lay_out() -> None:
    """Lay out the two columns; the page fills them from /studio."""
    with gr.Row(elem_classes="columns runs-columns"):
        with gr.Column(elem_classes="settings runs-left"):
            gr.HTML("<div data-board></div>", elem_id="runs-board", apply_default_css=False)
        with gr.Column(elem_classes="running runs-right"):
            gr.HTML(SLOT.format(place=NAME), elem_id="runs-run", apply_default_css=False)
