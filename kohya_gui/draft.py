"""What stands in a form, kept in the browser: a reload of the page or of the GUI brings it back. Never the secrets."""

import json
import time
from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from kohya_gui.controls import BROWSER_SECRET, Form, given, shown


class Draft:
    """Written by the browser alone when one has typed: no request leaves the page for it.

    The page's script presses a button of each tab for that (drafts.js). Listening to all controls would make Gradio
    gather the whole form at each letter, and compare every component with every listener when the page is opened.
    """

    def __init__(self, form: Form, family: Component, file: Component, preset: Component, launch: str) -> None:
        self._form, self._launch = form, launch
        self.state = gr.BrowserState({}, storage_key=f"{form.tab}-draft", secret=BROWSER_SECRET, render=False)
        kept = {"family": family, "file": file, "preset": preset}
        kept |= {f"option:{name}": c for name, c in form.controls.items() if not form.options[name].secret}
        names = json.dumps(list(kept))
        self._names = names
        self._held: dict[str, Any] = {"fn": None, "inputs": [*kept.values(), self.state], "api_visibility": "private"}
        self._write: dict[str, Any] = {
            **self._held,
            "outputs": self.state,
            "js": f"(...now) => Drafts.written('{form.tab}', {names}, now, '{launch}')",
        }
        gr.Button("Keep", elem_classes="keep-draft offstage").click(**self._write)

    def keep_after(self, event: Any) -> None:
        """Keep what the page holds once an event has changed it, and show and hide by it."""
        event.then(**self._write)

    def release_after(self, event: Any) -> None:
        """Let the form be used once what the browser kept of it is back."""
        event.success(**self._held, js=f"(...now) => Drafts.release('{self._form.tab}', {self._names}, now)")

    def of(
        self, values: Mapping[str, Any], family: str, file: str, preset: str | None, *, unsaved: bool = False
    ) -> dict[str, Any]:
        """The draft of a form that Python fills in; but for an `unsaved` one, changes are counted from it."""
        options = self._form.options
        kept = {name: shown(options[name], values[name]) for name in self._form.controls if name in values}
        texts = {f"option:{name}": value for name, value in kept.items() if not options[name].secret}
        saved = {} if unsaved else {"saved": str(time.time_ns())}
        return {"family": family, "file": file, "preset": preset, "launch": self._launch, **saved, **texts}

    def values(self, draft: Mapping[str, Any]) -> dict[str, Any]:
        """The options in a draft, in their own types."""
        options = self._form.options
        return {
            name: given(options[name], value)
            for key, value in draft.items()
            if (name := key.removeprefix("option:")) != key and name in options
        }

    def of_this_launch(self, draft: Mapping[str, Any]) -> bool:
        """Whether it was written since the GUI started: then it is newer than the file named on the command line."""
        return draft.get("launch") == self._launch
