"""The draft of a form, stored in the browser, where it survives a reload or a GUI restart. Secrets are not in it."""

import json
import time
from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from kohya_gui.form.controls import BROWSER_SECRET, Form, given, shown


class Draft:
    """Written by the browser alone while the user types: no request leaves the page for it.

    The page's script presses a hidden button of the tab for that (drafts.js). Listening to all controls would make
    Gradio gather the whole form at every keystroke and compare every component with every listener on page load.
    """

    def __init__(self, form: Form, family: Component, file: Component, preset: Component, launch: str) -> None:
        self._form = form
        self._launch = launch
        self.state = gr.BrowserState({}, storage_key=f"{form.tab}-draft", secret=BROWSER_SECRET, render=False)
        components = {"family": family, "file": file, "preset": preset}
        components |= {f"option:{name}": c for name, c in form.controls.items() if not form.options[name].secret}
        self._names = json.dumps(list(components))
        self._held: dict[str, Any] = {
            "fn": None,
            "inputs": [*components.values(), self.state],
            "api_visibility": "private",
        }
        self._write: dict[str, Any] = {
            **self._held,
            "outputs": self.state,
            "js": f"(...now) => Drafts.written('{form.tab}', {self._names}, now, '{launch}')",
        }
        gr.Button("Keep", elem_classes="keep-draft offstage").click(**self._write)
        put = gr.Button("Put", elem_classes="put-values offstage")
        # values from elsewhere than the form's own controls, whose panels the browser may not have built (drafts.js)
        written = put.click(
            None, None, list(components.values()), js=f"() => Drafts.putting('{form.tab}')", api_visibility="private"
        )
        self.keep_after(written)

    def keep_after(self, event: Any) -> None:
        """Save the draft after an event that changed the form, and update the page."""
        event.then(**self._write)

    def release_after(self, event: Any) -> None:
        """Unlock the form once its draft is restored."""
        event.success(**self._held, js=f"(...now) => Drafts.release('{self._form.tab}', {self._names}, now)")

    def of(
        self, values: Mapping[str, Any], family: str, file: str, preset: str | None, *, unsaved: bool = False
    ) -> dict[str, Any]:
        """Return the draft of a form filled by Python; unless `unsaved`, it is the baseline for unsaved changes."""
        options = self._form.options
        contents = {name: shown(options[name], values[name]) for name in self._form.controls if name in values}
        texts = {f"option:{name}": value for name, value in contents.items() if not options[name].secret}
        saved = {} if unsaved else {"saved": str(time.time_ns())}
        return {"family": family, "file": file, "preset": preset, "launch": self._launch, **saved, **texts}

    def values(self, draft: Mapping[str, Any]) -> dict[str, Any]:
        """Return the option values of a draft in their own types."""
        options = self._form.options
        return {
            name: given(options[name], value)
            for key, value in draft.items()
            if (name := key.removeprefix("option:")) != key and name in options
        }

    def of_this_launch(self, draft: Mapping[str, Any]) -> bool:
        """Return whether it was written since the GUI started, and so is newer than the file on the command line."""
        return draft.get("launch") == self._launch
