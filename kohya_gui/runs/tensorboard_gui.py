"""Buttons that start and stop TensorBoard on a tab's log folder."""

import os
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.form.controls import QUIET, Form, unquoted
from kohya_gui.runs.tensorboard import TENSORBOARD
from kohya_gui.server.messages import Html, message
from sd_scripts.runs.queue import RunQueue

NO_LOGIN = "It has no login: other accounts of that machine can see it too."


class TensorBoardButtons:
    """Start and stop TensorBoard on the form's logging_dir."""

    def __init__(self, form: Form, family: FormComponent, queue: RunQueue) -> None:
        self._form = form
        small: dict[str, Any] = {"size": "sm", "min_width": 170, "scale": 0}
        with gr.Row(elem_classes="actions"):
            self._start = gr.Button("Start TensorBoard", elem_id=f"{form.tab}-tensorboard", **small)
            self._stop = gr.Button("Stop TensorBoard", visible=False, elem_id=f"{form.tab}-stop-tensorboard", **small)
        self._message = gr.HTML(elem_id=f"{form.tab}-tensorboard-status")

    def connect(self) -> None:
        done = [self._message, self._stop]
        slow = {**QUIET, "show_progress": "minimal", "show_progress_on": self._message}
        self._start.click(self._begin, self._form.controls["logging_dir"], done, **slow)
        self._stop.click(self._end, None, done, **QUIET)

    def _begin(self, logging_dir: str | None) -> list[Any]:
        try:
            folder = unquoted(logging_dir or "").strip()
            if not folder:
                raise ValueError("logging_dir: not set; choose the folder that TensorBoard shows")
            url = TENSORBOARD.start(self._form.allowed_paths.check("logging_dir", folder))
            said = address(url, Path(os.path.expanduser(folder)))
        except ValueError as error:
            said = self._form.links.refused(error)
        return [said, gr.update(visible=TENSORBOARD.running)]

    def _end(self) -> list[Any]:
        TENSORBOARD.stop()
        return [message("ok", "TensorBoard stopped"), gr.update(visible=False)]


def address(url: str, folder: Path) -> str:
    """Return the message with TensorBoard's address, which works only on the machine of the GUI."""
    link = f'<a href="{escape(url)}" target="_blank" rel="noreferrer">{escape(url)}</a>'
    said = f"TensorBoard shows {escape(str(folder))} until the GUI exits. On the machine that runs the GUI, open {link}"
    return message("ok", Html(f"{said}. {NO_LOGIN}"))
