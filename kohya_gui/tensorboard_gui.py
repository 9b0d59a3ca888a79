"""Buttons that start and stop TensorBoard on a tab's log folder."""

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
    tab: str, queue: RunQueue, allowed_paths: AllowedPaths, board: TensorBoard = TENSORBOARD
) -> Callable[[Form, FormComponent], None]:
    """Lay out the buttons; the function returned connects them to the form's logging_dir."""
    small: dict[str, Any] = {"size": "sm", "min_width": 170, "scale": 0}
    with gr.Row(elem_classes="actions"):
        start = gr.Button("Start TensorBoard", elem_id=f"{tab}-tensorboard", **small)
        stop = gr.Button("Stop TensorBoard", visible=False, elem_id=f"{tab}-stop-tensorboard", **small)
    told = gr.HTML(elem_id=f"{tab}-tensorboard-told")

    def begin(logging_dir: str | None) -> list[Any]:
        try:
            folder = unquoted(logging_dir or "").strip()
            if not folder:
                raise ValueError("logging_dir: not set; choose the folder that TensorBoard shows")
            said = address(board.start(allowed_paths.check("logging_dir", folder)), Path(os.path.expanduser(folder)))
        except ValueError as error:
            said = message("error", str(error))
        return [said, gr.update(visible=board.running)]

    def end() -> list[Any]:
        board.stop()
        return [message("ok", "TensorBoard stopped"), gr.update(visible=False)]

    def connect(form: Form, family: FormComponent) -> None:
        slow = {**QUIET, "queue": True, "show_progress": "minimal", "show_progress_on": told}
        start.click(begin, form.controls["logging_dir"], [told, stop], **slow)
        stop.click(end, None, [told, stop], **QUIET)

    return connect


def address(url: str, folder: Path) -> str:
    """Return the message with TensorBoard's address, which works only on the machine of the GUI."""
    link = f'<a href="{escape(url)}" target="_blank" rel="noreferrer">{escape(url)}</a>'
    return (
        '<div class="message message-ok" role="status"><span class="sign">✓</span><div>'
        f"<p>TensorBoard shows {escape(str(folder))} until the GUI exits. On the machine that runs the GUI, open {link}"
        ". It has no login: other accounts of that machine can see it too.</p></div></div>"
    )
