"""The control "Compile bundle": it shows which bundle the compile controls are set to, and sets them all."""

import json
from dataclasses import asdict
from typing import Any

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.form.controls import QUIET, Form, shown
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.compile_bundles import BUNDLES, CUSTOM, CUSTOM_HELP, NONE, bundle_title
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.family_options import each_option


class CompileBundleControl:
    """A list of the bundles, which the browser keeps in step with the compile controls (compile_bundle.js)."""

    def __init__(self, form: Form, family: FormComponent, queue: RunQueue) -> None:
        self._form = form
        self._bundle = gr.Dropdown(
            [*(bundle.title for bundle in BUNDLES), CUSTOM],
            value=NONE.title,
            label="Compile bundle",
            info=NONE.help,
            elem_id=f"{form.tab}-compile-bundle",
            elem_classes="option-small",
            filterable=False,
            interactive=True,
        )

    def connect(self) -> None:
        options = list(each_option(CompileOptions))
        controls = [self._form.controls[option.name] for option in options]
        first: dict[str, Any] = {option.name: option.read(c.value) for option, c in zip(options, controls, strict=True)}
        self._bundle.value = bundle_title(CompileOptions(**first))
        helps = {bundle.title: bundle.help for bundle in BUNDLES} | {CUSTOM: CUSTOM_HELP}
        self._bundle.info = helps[self._bundle.value]
        table = [
            {
                "title": bundle.title,
                "help": bundle.help,
                "values": [shown(option, asdict(bundle.options)[option.name]) for option in options],
            }
            for bundle in BUNDLES
        ]
        custom = {"title": CUSTOM, "help": CUSTOM_HELP}
        arguments = f"'{self._form.tab}', {json.dumps(table)}, {json.dumps(custom)}"
        changes = [control.change for control in controls]  # type: ignore[attr-defined]
        show = f"(...now) => CompileBundles.shown({arguments}, now)"
        # a bundle changes several controls together; the last event sees them all
        gr.on(changes, None, controls, self._bundle, js=show, trigger_mode="always_last", **QUIET)
        take = f"(chosen, ...now) => CompileBundles.taken({arguments}, chosen, now)"
        self._bundle.input(None, [self._bundle, *controls], [self._bundle, *controls], js=take, **QUIET)
