"""Tabs that scripts of the page fill, such as the dataset and the runs; and the run column of a training tab."""

from html import escape

import gradio as gr

SLOT = '<div data-live="{place}"></div>'
"""Slot for the page's single live view (live.js) while this tab is shown."""
PLAN = '<div data-plan="{tab}"><p class="plan plan-empty">Making the plan…</p></div><div data-measured="{tab}"></div>'
"""Slots for the plan of the run (plan.js) and for measurements (measure.js)."""


class RunPanel:
    """The run column; the tab connects its Start and Print buttons."""

    def __init__(self, tab: str) -> None:
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button("Start training", variant="primary", elem_id=f"{tab}-start", scale=3)
            self.print = gr.Button("Print command", elem_id=f"{tab}-print", scale=2)
        gr.HTML(PLAN.format(tab=tab), elem_id=f"{tab}-plan", apply_default_css=False)
        self.message = gr.HTML(elem_id=f"{tab}-message")
        self.command = gr.HTML(visible=False, elem_id=f"{tab}-command", elem_classes="command", apply_default_css=False)
        gr.HTML(SLOT.format(place=tab), elem_id=f"{tab}-run", apply_default_css=False)
        # runs.js (Studio.load) fills in the number of a past run and presses the button
        self.past = gr.Textbox(elem_id=f"{tab}-load-run", elem_classes="offstage", container=False)
        self.load = gr.Button("Load settings", elem_id=f"{tab}-load", elem_classes="offstage")
        # fields.js fills in the answer to a question of Start and presses Start again
        self.answer = gr.Textbox(elem_id=f"{tab}-answer", elem_classes="offstage", container=False)


def printed_command(line: str) -> str:
    """Return a command line with a Copy button; its lines break between words only, never after the `--` of a flag."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in line.split(" "))
    copy = f'<button type="button" class="link" data-copy="{escape(line)}">Copy</button>'
    return f"<p><b>Command</b> {copy}</p><pre>{words}</pre>"


def runs_tab() -> None:
    """Lay out the Runs tab: the queue and past runs on the left, the selected one on the right (runs.js)."""
    with gr.Row(elem_classes="columns runs-columns"):
        with gr.Column(elem_classes="settings runs-left"):
            gr.HTML("<div data-board></div>", elem_id="runs-board", apply_default_css=False)
        with gr.Column(elem_classes="running runs-right"):
            gr.HTML(SLOT.format(place="runs"), elem_id="runs-run", apply_default_css=False)


def models_tab() -> None:
    """Lay out the tab Models, which models.js fills."""
    gr.HTML("<div data-models></div>", elem_id="models-view", apply_default_css=False)


def dataset_tab() -> None:
    """Lay out the tab Dataset, which dataset.js fills."""
    gr.HTML("<div data-dataset></div>", elem_id="dataset-view", apply_default_css=False)


def lora_tools_tab() -> None:
    """Lay out the tab LoRA tools, which lora_tools.js fills."""
    gr.HTML("<div data-lora-tools></div>", elem_id="lora-tools", apply_default_css=False)


def captions_tab() -> None:
    """Lay out the tab Captions, which captions.js fills."""
    gr.HTML("<div data-captions></div>", elem_id="captions-form", apply_default_css=False)


def image_tools_tab() -> None:
    """Lay out the tab Image tools, which images.js fills."""
    gr.HTML("<div data-images></div>", elem_id="images-form", apply_default_css=False)


def generate_tab() -> None:
    """Lay out the tab Generate: its form on the left, progress and images on the right (generate.js)."""
    with gr.Row(elem_classes="columns"):
        with gr.Column(elem_classes="settings runs-left"):
            gr.HTML("<div data-generate></div>", elem_id="generate-form", apply_default_css=False)
        with gr.Column(elem_classes="running"):
            gr.HTML("<div data-gallery></div>", elem_id="generate-gallery", apply_default_css=False)


def machine_tab() -> None:
    """Lay out the tab Machine: its checks (doctor.js) and the compiler cache on the left, the run on the right."""
    with gr.Row(elem_classes="columns runs-columns"):
        with gr.Column(elem_classes="settings runs-left"):
            gr.HTML("<div data-doctor></div>", elem_id="machine-checks", apply_default_css=False)
            gr.HTML("<div data-compile-cache></div>", elem_id="machine-compile-cache", apply_default_css=False)
        with gr.Column(elem_classes="running runs-right"):
            gr.HTML(SLOT.format(place="machine"), elem_id="machine-run", apply_default_css=False)
