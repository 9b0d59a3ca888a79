"""The button that opens TensorBoard on the log folder of a tab."""

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.allowed_paths import AllowedPaths
from kohya_gui.controls import QUIET, Form, unquoted
from kohya_gui.messages import message
from kohya_gui.tensorboard import TENSORBOARD, TensorBoard
from sd_scripts.runs.queue import RunQueue


def tensorboard_tool(
    tab: str, queue: RunQueue, places: AllowedPaths, board: TensorBoard = TENSORBOARD
) -> Callable[[Form, FormComponent], None]:
    """Lays out the button; what it returns connects it with the form's logging_dir."""
    small: dict[str, Any] = {"size": "sm", "min_width": 170, "scale": 0}
    with gr.Row(elem_classes="actions"):
        start = gr.Button("Start TensorBoard", elem_id=f"{tab}-tensorboard", **small)
        stop = gr.Button("Stop TensorBoard", visible=False, elem_id=f"{tab}-stop-tensorboard", **small)
    told = gr.HTML(elem_id=f"{tab}-tensorboard-told")

    def begin(logging_dir: str | None) -> list[Any]:
        try:
            folder = unquoted(logging_dir or "").strip()
            if not folder:
                raise ValueError("logging_dir: is not set, and TensorBoard shows what lies there")
            said = address(board.start(places.check("logging_dir", folder)), Path(os.path.expanduser(folder)))
        except ValueError as error:
            said = message("error", str(error))
        return [said, gr.update(visible=board.running)]

    def end() -> list[Any]:
        board.stop()
        return [message("ok", "TensorBoard has ended"), gr.update(visible=False)]

    def connect(form: Form, family: FormComponent) -> None:
        slow = {**QUIET, "queue": True, "show_progress": "minimal", "show_progress_on": told}
        start.click(begin, form.controls["logging_dir"], [told, stop], **slow)
        stop.click(end, None, [told, stop], **QUIET)

    return connect


def address(url: str, folder: Path) -> str:
    """Where it can be looked at: on the machine of the GUI alone."""
    link = f'<a href="{escape(url)}" target="_blank" rel="noreferrer">{escape(url)}</a>'
    return (
        '<div class="message message-ok" role="status"><span class="sign">✓</span><div>'
        f"<p>TensorBoard shows {escape(str(folder))} until the GUI ends. On the machine of the GUI itself, open {link}"
        ". It has no login: other accounts of that machine can see it too</p></div></div>"
    )
