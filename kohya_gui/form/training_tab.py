"""A training tab for any method: settings on the left, the run on the right, files and presets on top."""

import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.class_advanced_training import COMPILE_ADVICE, AdvancedTraining
from kohya_gui.dataset import recognise_images
from kohya_gui.form import recognise
from kohya_gui.form.configuration import Prepared, config_path, families_of, path_to_save, save_prompts
from kohya_gui.form.controls import BROWSER_SECRET, QUIET, Form, Panel, Tool, Updates, after_changes, given, unquoted
from kohya_gui.form.draft import Draft
from kohya_gui.form.presets import (
    BASE_MODEL,
    KEPT_BY_PRESETS,
    PRESETS,
    first_preset,
    own_preset,
    preset_file,
    preset_title,
    preset_words,
)
from kohya_gui.form.prompt_editor import saved_text
from kohya_gui.form.recognise import Recognised
from kohya_gui.form.training import Training
from kohya_gui.runs.measure_routes import SET_BY_SOME, SET_BY_VARIANTS
from kohya_gui.runs.overwriting import answered, find_taken, question
from kohya_gui.runs.past_runs import opened_run
from kohya_gui.runs.runs_gui import RunPanel, printed_command
from kohya_gui.runs.shell_line import shell_line
from kohya_gui.server.messages import Html, message
from kohya_gui.settings.search_index import contents
from kohya_gui.tabs import TABS, Tab
from sd_scripts.families.cards.registry import card_of, component_options, preset_family
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.options.spec import Remark
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import gpus_overlap, state_folder
from sd_scripts.settings.catalog import FAMILY_TITLES, script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.run_length import usual_factor

logger = logging.getLogger("sd_scripts")

SHARED = (*(name for name in KEPT_BY_PRESETS if name not in ("output_name", "sample_prompts")), "caption_extension")
"""Options that one tab can copy from another: model, images and output folder."""
COMPILE = "compile"
"""The option that also has a switch next to the presets."""
FIRST_OUTPUT = "outputs"
"""Output folder of a fresh page."""
ABOUT_IMAGES = ("caption_extension", "in_json", "num_repeats", "allow_many_repeats", "max_train_epochs")
"""Options that decide how the images in train_data_dir are read, and how often."""
HINTED = (BASE_MODEL, "train_data_dir", "in_json", "output_dir", *component_options())
WITHOUT = ("run_dir",)
"""Options that the GUI sets itself."""
NO_SLURM = Remark("where", "sbatch was not found on the PATH, so the run starts on this machine")
OF_SLURM = tuple(o.name for o in each_option(SlurmOptions))
"""Options next to Start, on machines from which jobs can be submitted."""
UNSAVED_PROMPTS = Remark("sample_prompts", "the run has the prompts of the file; those in the editor are not saved")
RECENT = 12
UNDO = '<p class="undo"><button type="button" data-load="undo">Undo</button></p>'
"""Restores the previous values of the form (fields.js)."""


class TrainingTab:
    def __init__(
        self, training: Training, queue: RunQueue, launch: str, allowed_paths: AllowedPaths = EVERYWHERE
    ) -> None:
        self.training = training
        self._queue = queue
        self._allowed_paths = allowed_paths
        self.name = training.tab.name
        method = training.tab.method
        self._families = families = families_of(method)
        groups = tuple(dict.fromkeys(g for family in families for g in script_for(family, method).groups))
        without = WITHOUT if shutil.which("sbatch") else (*WITHOUT, *OF_SLURM)
        self.form = Form(self.name, groups, method, without, HINTED, allowed_paths)
        self._tools: list[Tool] = []
        self._configuration_row()
        with gr.Row(elem_classes="columns"):
            sections = gr.HTML(elem_classes="sections")
            with gr.Column(elem_classes="settings"):
                self._settings(families)
            with gr.Column(elem_classes="running"):
                self.form.panel(Panel(SlurmOptions.title, OF_SLURM, open=True))
                self.run = RunPanel(self.name)
        sections.value = contents(training.tab.title, self.form.sections())
        self.unknown = gr.BrowserState({}, storage_key=f"{self.name}-unknown", secret=BROWSER_SECRET, render=False)
        self.recent = gr.BrowserState([], storage_key=f"{self.name}-recent", secret=BROWSER_SECRET, render=False)
        # the file these settings were opened from or saved to: Save overwrites it, any other only after a second click
        self.opened = gr.BrowserState("", storage_key=f"{self.name}-opened", secret=BROWSER_SECRET, render=False)
        self.replacing = gr.State("")
        # the form's values before a preset, a file or a past run replaced them
        self.before = gr.State({})
        self.draft = Draft(self.form, self.family, self.file, self.preset, launch)
        self.form.begin(self._first_values(families), families[0])
        self.form.connect(self.family)
        self._connect_compile()
        for tool in self._tools:
            tool.connect()
        self._connect_hints()
        self._wire()
        self._others: dict[str, TrainingTab] = {}
        self._one_start = threading.Lock()

    def _first_values(self, families: Sequence[str]) -> dict[str, Any]:
        """Return the first family's preset plus, from the others' presets, the options that no earlier family has."""
        first_with = {n: next((f for f in families if f in o.families), "") for n, o in self.form.options.items()}
        values: dict[str, Any] = {"output_dir": FIRST_OUTPUT}
        for family in families:
            preset = preset_file(self.name, first_preset(family))
            own_values = card_of(family).page.recommended
            if preset.is_file():  # a family may come without presets
                own_values = self.training.open_configuration(preset, family).values
            values |= {n: v for n, v in own_values.items() if first_with[n] == family}
        return values

    def _presets(self, family: str) -> list[tuple[str, str]]:
        """Return titles and names of the presets, the family's first, the others in the order of the families."""
        order = {name: number for number, name in enumerate(self._families, 1)} | {family: 0}
        files = sorted((PRESETS / self.name).glob("*.toml"))
        files.sort(key=lambda path: order.get(preset_family(path.stem), len(order) + 1))
        return [(preset_title(path), path.stem) for path in files]

    def _selected(self, preset: str | None, family: str) -> Any:
        """Return an update of the list of presets: this one selected, or none, and the family's presets first."""
        return gr.update(value=preset, choices=self._presets(family))

    # Layout

    def _configuration_row(self) -> None:
        tab = self.name
        small: dict[str, Any] = {"size": "sm", "min_width": 80, "scale": 0}
        with gr.Row(elem_classes="configuration"):
            self.file = gr.Dropdown(
                [], value="", allow_custom_value=True, label="Configuration file", elem_id=f"{tab}-file", scale=4
            )
            gr.Button("Browse…", elem_id=f"{tab}-browse", **small)  # browse.js
            self.open = gr.Button("Open", elem_id=f"{tab}-open", **small)
            self.save = gr.Button("Save", elem_id=f"{tab}-save", **small)
            self.save_as = gr.Button("Save as…", elem_id=f"{tab}-save-as", **small)
            first = first_preset(self._families[0])
            self.preset = gr.Dropdown(
                self._presets(self._families[0]),
                value=first,
                label="Preset",
                elem_id=f"{tab}-preset",
                scale=2,
                filterable=False,
            )
            gr.Button("Presets…", elem_id=f"{tab}-presets", **small)  # presets.js
            self.compile = gr.Checkbox(
                label=self.form.options[COMPILE].label,
                info=COMPILE_ADVICE,
                elem_id=f"{tab}-compile-switch",
                elem_classes="compile-switch",
                scale=2,
                min_width=250,
            )
        # browse.js puts a dropped settings file here and presses Open
        self.dropped = gr.Textbox(elem_id=f"{tab}-dropped", elem_classes="offstage", container=False)
        with gr.Row(elem_classes="configuration", visible=False) as self.save_row:
            self.new_name = gr.Textbox(
                label="Save as", placeholder=f"~/my_{tab}.toml", elem_id=f"{tab}-new-name", max_lines=1, scale=4
            )
            self.save_new = gr.Button("Save", variant="primary", elem_id=f"{tab}-save-new", **small)
            self.cancel = gr.Button("Cancel", elem_id=f"{tab}-cancel", **small)

    def _settings(self, families: list[str]) -> None:
        self.family = gr.Radio(
            [(FAMILY_TITLES[family], family) for family in families],
            value=families[0],
            label="Model family",
            elem_id=f"{self.name}-family",
            elem_classes="family" if len(families) > 1 else "family offstage",  # a single one leaves no choice
        )
        others = [tab for tab in TABS.values() if tab is not self.training.tab]
        gr.HTML(take_over(others), elem_id=f"{self.name}-others", elem_classes="others")
        for panel in self.training.panels:
            if not panel.late:
                self._panel(panel)
        AdvancedTraining(self.name, self._panel)
        for panel in self.training.panels:
            if panel.late:
                self._panel(panel)

    def _panel(self, panel: Panel) -> None:
        named = {name for other in self.training.panels for name in (*other.names, *other.more)}
        rest = [name for name in self.form.left_of(*panel.rest) if name not in named]
        lead = partial(self._tool, panel.lead) if panel.lead else None
        tool = partial(self._tool, panel.tool) if panel.tool else None
        inside = tool if panel.tool_inside else None
        self.form.panel(panel, [*panel.more, *rest], lead, inside)
        if tool and not inside:
            tool()

    def _tool(self, tool: type[Tool]) -> None:
        self._tools.append(tool(self.form, self.family, self._queue))

    def _connect_hints(self) -> None:
        """Show a hint under each path field that describes the file or folder."""
        controls = self.form.controls
        components = [name for name in component_options() if name in self.form.hints]

        def model_hint(path: str, family: str, *files: str) -> str:
            model = self._seen(BASE_MODEL, path, lambda text: recognise.model(text, family))
            other = model.family if model.family in self._families else None
            if other and other != family:
                return hint(model, offer(self.family.elem_id or "", other))
            unset = [name for name, file in zip(components, files, strict=True) if not (file or "").strip()]
            return hint(model, "".join(self._beside(name, unquoted(path or ""), family) for name in unset))

        self._connect_hint(BASE_MODEL, model_hint, self.family, read=[controls[name] for name in components])
        self._connect_hint("train_data_dir", self._image_hint, *(controls[n] for n in ABOUT_IMAGES), self.family)
        self._connect_hint("output_dir", output_hint)
        self._connect_hint("in_json", lambda path: hint(self._seen("in_json", path, recognise.metadata)))
        for name in components:
            self._connect_hint(name, self._component_hint(name), self.family)

    def _connect_hint(self, name: str, tell: Callable[..., str], *others: Any, read: Sequence[Any] = ()) -> None:
        """Call `tell` when the field or one of the others has changed; it also gets the fields in `read`."""
        about = [self.form.controls[name], *others]
        after_changes(about, tell, [*about, *read], self.form.hints[name])

    def _image_hint(
        self, path: str, extension: str, metadata: str, num_repeats: str, many: bool, epochs: str, family: str
    ) -> str:
        options = self.form.options
        links = self.form.links

        def number(name: str, typed: str) -> int | None:
            value = given(options[name], typed)
            return value if isinstance(value, int) else None

        def look(text: str) -> Recognised:
            if metadata:
                return recognise_images.beside_metadata(text)
            clips = card_of(family).clips is not None
            repeats = number("num_repeats", num_repeats)
            return recognise_images.train_data(text, extension or ".caption", repeats, many, clips=clips)

        images = self._seen("train_data_dir", path, look)
        if images.ending:
            return hint(images, links.set_button("caption_extension", images.ending, f"Use {images.ending} instead"))
        if images.instead:
            near = os.path.relpath(images.instead, os.path.expanduser(unquoted(path).strip()))
            return hint(images, links.set_button("train_data_dir", str(images.instead), f"Use '{near}'"))
        if not images.flat:
            return hint(images)
        passes = number("max_train_epochs", epochs)  # without them the number of steps is set
        factor = usual_factor(images.images * passes) if passes and passes > 0 else 1
        label = f"Use this folder, {factor} repeats" if factor > 1 else "Use this folder as is"
        return hint(images, links.set_button("num_repeats", str(factor), label))

    def _component_hint(self, name: str) -> Callable[[str, str], str]:
        return lambda path, family: hint(self._seen(name, path, lambda text: recognise.part(text, name, family)))

    def _beside(self, name: str, model: str, family: str) -> Html:
        """Return a button that takes a component from the folder of the base model; empty if it is not there."""
        file = recognise.part_beside(model, name, family, self._allowed_paths.holds)
        return self.form.links.set_button(name, str(file), f"Use '{file.name}' next to it") if file else Html()

    def _seen(self, name: str, path: str, look: Callable[[str], Recognised]) -> Recognised:
        return recognise.allowed(self._allowed_paths, name, unquoted(path or ""), look)

    def _message(self, remarks: Sequence[Remark], title: str) -> str:
        return self.form.links.box("warning" if remarks else "ok", title, remarks)

    def _connect_compile(self) -> None:
        """Keep the switch next to the presets and the control under Advanced Training in step, in the browser."""
        switch = self.compile
        setting = self.form.controls[COMPILE]
        assert isinstance(setting, gr.Checkbox)
        switch.value = setting.value
        switch.input(None, switch, setting, js="(on) => on", **QUIET)
        setting.change(None, setting, switch, js="(on) => on", **QUIET)

    # Buttons

    def _wire(self) -> None:
        state = (
            *(self.family, self.file, self.preset, self.opened, self.unknown, self.recent, self.form.prompts),
            *(self.run.answer, self.dropped, self.before),
        )
        shown = (*self._saving(), self.draft.state, self.run.message, self.run.command)
        self._everything = [*self.form.outputs(), *state, *shown]
        self._page: set[Any] = {*self.form.inputs(), *state, self.new_name, self.replacing}
        if self.form.prompt_editor:
            self._page |= self.form.prompt_editor.inputs
        last = {**QUIET, "trigger_mode": "always_last"}  # a choice made while an earlier one is answered counts, too
        with_own_defaults = [self.form.controls[name] for name in self.form.with_own_defaults()]
        chosen = [self.preset, *with_own_defaults, self.run.message]
        changes = (
            self.family.input(self._chosen, {self.family, self.draft.state, *chosen}, chosen, **last),
            self._answer(self.open.click, self._open, QUIET),
            self._answer(self.preset.select, self._open_preset, last),
            self._answer(self.run.start.click, self._start, QUIET),
            self._answer(self.save.click, self._save, QUIET),
            self._answer(self.save_new.click, self._save_as, QUIET),
        )
        for event in (*changes, *self.form.write_events):
            self.draft.keep_after(event)
        self.save_as.click(lambda file: self._ask_name(file or ""), self.file, self._saving(), **QUIET)
        self.cancel.click(self._not_saving, None, self._saving(), **QUIET)
        self.new_name.input(self._not_replacing, None, self._saving(), **QUIET)
        self._answer(self.run.print.click, self._print, QUIET)

    def connect_others(self, tabs: Sequence["TrainingTab"]) -> None:
        """Let settings be loaded from past runs, from presets and from the other tabs."""
        self._others = {tab.name: tab for tab in tabs if tab is not self}
        drafts = [tab.draft.state for tab in self._others.values()]
        self.draft.keep_after(self._answer(self.run.load.click, self._open_past, QUIET, self.run.past, *drafts))

    def _answer(self, event: Any, handler: Callable[[Updates], Updates], how: Mapping[str, Any], *more: Any) -> Any:
        """Let `handler` answer an event with the values of the page, and of `more` components."""
        return event(self._answering(handler), {*self._page, *more}, self._everything, **how)

    def _answering(self, handler: Callable[[Updates], Updates]) -> Callable[[Updates], Updates]:
        """Wrap a handler so that it always answers, with a message that is new to the page (fields.js).

        A ValueError is a mistake of the user, one sentence per line.
        """

        def answer(data: Updates) -> Updates:
            try:
                updates = handler(data)
            except ValueError as error:
                updates = {self.run.message: self.form.links.refused(error)}
            except Exception as error:  # the page waits for an answer
                logger.exception("A request of the page failed")
                text = f"Internal error ({type(error).__name__}: {error}); see the console of the GUI for the traceback"
                updates = {self.run.message: message("error", text)}
            shown = updates.get(self.run.message, "")
            return {**updates, self.run.message: f'{shown}<i hidden data-at="{time.monotonic_ns()}"></i>'}

        return answer

    def on_load(self, page: gr.Blocks, config: Path | None) -> None:
        """Restore the browser's draft or, once per start of the GUI, open the file named on the command line.

        Called outside the tab: the contents of a tab do not exist in the browser until it is first shown.
        """
        for state in (self.draft.state, self.unknown, self.recent, self.opened, self.form.prompts):
            state.render()

        def load(draft: dict[str, Any], recent: list[str]) -> Updates:
            families = self._families
            recent = [file for file in recent if os.path.isfile(file)]  # the rest may be gone by now
            if config and not self.draft.of_this_launch(draft):
                return self._opened(str(config), recent, draft.get("family") or families[0])
            if not draft:  # a new browser: nothing to restore, and nothing typed in the meantime may be lost
                return {self.file: gr.update(choices=recent)}
            family = draft["family"] if draft.get("family") in families else families[0]
            updates, remarks = self.form.write(self.draft.values(draft), family)
            file = gr.update(value=draft.get("file") or "", choices=recent)
            preset = draft.get("preset") or ""
            shown_preset = preset if preset_family(preset) == family else None
            updates |= {self.family: family, self.file: file, self.preset: self._selected(shown_preset, family)}
            updates = self.form.changed(updates, self.form.first())
            return updates | ({self.run.message: self._message(remarks, "Settings restored")} if remarks else {})

        restored = page.load(load, [self.draft.state, self.recent], self._everything, **QUIET)
        self.draft.release_after(restored)

    def _open(self, data: Updates) -> Updates:
        if data[self.dropped]:
            return {**self._undoable(self._open_dropped(data), data), self.dropped: ""}
        updates = self._opened(data[self.file] or "", data[self.recent], data[self.family])
        return self._undoable(updates, data)

    def _chosen(self, data: Updates) -> Updates:
        """Switch the family: shared options stay, but a default becomes the new family's; the preset of a different
        family is no longer shown as selected."""
        family, preset = data[self.family], data[self.preset]
        before = (data[self.draft.state] or {}).get("family", self._families[0])  # kept after this event
        name = first_preset(family)
        file = preset_file(self.name, name)
        text = f"{FAMILY_TITLES[family]} selected. Your settings stay."
        button = ""
        if file.is_file():
            title = preset_title(file)
            text += f" The preset {title} sets recommended values"
            button = f'<div class="ways"><button type="button" data-load="preset:{name}">Use {title}</button></div>'
        selected = preset if preset and preset_family(preset) == family else None
        said = message("ok", text, more=Html("" if selected else button))
        defaults = self.form.defaults_of(family, before, data)
        return {**defaults, self.preset: self._selected(selected, family), self.run.message: said}

    def _opened(self, typed_path: str, recent: list[str], family: str) -> Updates:
        try:
            path = config_path(typed_path)
            opened = self.training.open_configuration(path, family, self._allowed_paths)
        except ValueError as error:
            return {self.run.message: self.form.links.refused(error)}
        remarks = opened.remarks
        if opened.prompts:
            text = f"the prompts in {path.name} are kept in the page; Save and Start write them to a file"
            remarks = (*remarks, Remark("sample_prompts", text))
        updates = self._filled(opened.values, opened.family, str(path), remarks, f"Opened {path.name}")
        others = {self.unknown: opened.unknown, self.form.prompts: opened.prompts}
        return updates | self._remember(path, recent) | others

    def _open_dropped(self, data: Updates) -> Updates:
        """Open a settings file that was dropped on the page, which has its name and text but not its path."""
        try:
            dropped = json.loads(data[self.dropped])
            name = Path(str(dropped["name"])).name
            if not name.lower().endswith((".toml", ".json")):
                raise ValueError(f"{name} is not a settings file: drop a .toml or a kohya_ss .json file")
            with tempfile.TemporaryDirectory(dir=state_folder()) as folder:
                file = Path(folder) / name
                file.write_text(str(dropped["text"]), encoding="utf-8")
                updates = self._opened(str(file), [], data[self.family])
        except (KeyError, TypeError, ValueError, OSError) as error:
            return {self.run.message: self.form.links.refused(ValueError(str(error)))}
        return {**updates, self.file: gr.update(), self.recent: gr.skip(), self.opened: ""}

    def _open_preset(self, data: Updates) -> Updates:
        return self._apply_preset(preset_file(self.name, data[self.preset]), data, data[self.preset])

    def _apply_preset(self, path: Path, data: Updates, shown: str | None) -> Updates:
        """Set what a preset is about; `shown` is then selected in the list, which does not have the user's own."""
        opened = self.training.open_configuration(path, preset_family(shown or "") or data[self.family])
        paths = {name: value for name, value in self.form.read(data).items() if name in KEPT_BY_PRESETS}
        title = f"Preset {preset_title(path)} applied; your model, folders and names stay. {preset_words(path)}"
        values = {**opened.values, **paths}
        updates = self._filled(values, opened.family, data[self.file] or "", opened.remarks, title, shown)
        return self._undoable(updates | {self.unknown: opened.unknown}, data)

    def _filled(
        self,
        values: Mapping[str, Any],
        family: str,
        file: str,
        remarks: tuple[Remark, ...],
        title: str,
        preset: str | None = None,
        *,
        unsaved: bool = False,
    ) -> Updates:
        updates, refusals = self.form.write(values, family)
        full, _ = self.form.complete(values, family)
        if values.get("where") == "slurm" and "where" not in self.form.controls:
            refusals.append(NO_SLURM)
        return {
            **updates,
            self.family: family,
            self.file: gr.update(value=file),
            self.preset: self._selected(preset, family),
            self.draft.state: self.draft.of(full, family, file, preset, unsaved=unsaved),
            self.run.message: self._message([*remarks, *refusals], title),
            **self._not_saving(),
        }

    def _remember(self, path: Path, recent: list[str]) -> Updates:
        recent = list(dict.fromkeys([str(path), *recent]))[:RECENT]
        file = gr.update(value=str(path), choices=recent)
        return {self.recent: recent, self.file: file, self.opened: str(path.absolute())}

    def _saving(self) -> list[Any]:
        return [self.save_row, self.new_name, self.save_new, self.replacing]

    def _ask_name(self, file: str) -> Updates:
        return {**self._not_replacing(), self.save_row: gr.update(visible=True), self.new_name: file}

    def _ask_to_replace(self, path: Path) -> Updates:
        return {
            **self._ask_name(str(path)),
            self.save_new: gr.update(value="Replace", variant="stop"),
            self.replacing: str(path),
            self.run.message: message("warning", f"{path} already exists. Press Replace to overwrite it"),
        }

    def _not_replacing(self) -> Updates:
        return {self.save_new: gr.update(value="Save", variant="primary"), self.replacing: ""}

    def _not_saving(self) -> Updates:
        return {**self._not_replacing(), self.save_row: gr.update(visible=False)}

    def _save(self, data: Updates) -> Updates:
        if not (data[self.file] or "").strip():
            return self._ask_name("")
        return self._saved(data, data[self.file])

    def _save_as(self, data: Updates) -> Updates:
        return self._saved(data, data[self.new_name] or "")

    def _saved(self, data: Updates, text: str) -> Updates:
        values = self.form.read(data)
        family = data[self.family]
        file = path_to_save(text)
        self._allowed_paths.check("configuration file", file)
        if os.path.isfile(file) and str(file) not in (data[self.opened], data[self.replacing]):
            return self._ask_to_replace(file)
        prompt_updates: Updates = {}
        if prompts := self._prompts(data, values):
            values["sample_prompts"] = str(save_prompts(file, prompts, self._allowed_paths))
            prompt_updates = {self.form.controls["sample_prompts"]: values["sample_prompts"], self.form.prompts: ""}
        path = self.training.save_configuration(file, values, family, data[self.unknown], self._allowed_paths)
        return {
            **self._remember(path, data[self.recent]),
            **prompt_updates,
            self.draft.state: self.draft.of(values, family, str(path), data[self.preset]),
            **self._not_saving(),
            self.run.message: self._message(self._left_out(values), f"Saved to {path}"),
        }

    def _prompts(self, data: Updates, values: Mapping[str, Any]) -> str:
        """Return the prompts that are in no file yet, those being typed first; empty if sample_prompts names a file."""
        if values.get("sample_prompts"):
            return ""
        editor = self.form.prompt_editor
        return (editor.unsaved(data) if editor else "") or data[self.form.prompts] or ""

    def _has_other_prompts(self, data: Updates, file: str) -> bool:
        """Return whether the editor has prompts that are not in the file of the settings."""
        typed = self.form.prompt_editor.unsaved(data) if self.form.prompt_editor and file else ""
        with suppress(ValueError):  # reported by the checks
            return bool(typed) and typed != saved_text(Path(file)).strip()
        return False

    def _left_out(self, values: Mapping[str, Any]) -> list[Remark]:
        secrets = [name for name, option in self.form.options.items() if option.secret and values[name]]
        return [Remark(name, "is a secret and is not saved to the file") for name in secrets]

    def _start(self, data: Updates) -> Updates:
        with self._one_start:  # of two pages, the second sees what the first has taken
            return self._started(data)

    def _started(self, data: Updates) -> Updates:
        answer = data[self.run.answer] or ""
        again = {self.run.answer: ""}
        values = self.form.read(data)
        try:
            outside = self._allowed_paths.problem("output_dir", values.get("output_dir") or ".")
            taken = None if outside else find_taken(values, self._queue)
            if taken:
                self.training.check(values, data[self.family], data[self.unknown], self._allowed_paths)
                decided = answered(values, answer, taken)
                if decided is None:
                    return {self.run.message: question(taken), **again}
                values = decided
            prepared, run = self._train(data, values, print_only=False)
            assert run is not None
            if self._has_other_prompts(data, values.get("sample_prompts") or ""):
                prepared = replace(prepared, remarks=(*prepared.remarks, UNSAVED_PROMPTS))
            waits = self._why_waiting(run)
        except ValueError as error:
            return {self.run.message: self.form.links.refused(error, start=True), **again}
        until = f' data-waits="{run}"' if waits else " data-started"  # when it is outdated, see live.js
        text = message("ok", waits, attributes=until) if waits else ""
        if prepared.remarks:
            title = f"{waits}. Note:" if waits else "Started. Note:"
            text = self.form.links.box("warning", title, prepared.remarks, attributes=until)
        updates: Updates = {self.run.message: text, self.run.command: gr.update(visible=False), **again}
        if answer.startswith("rename"):
            updates[self.form.controls["output_name"]] = values["output_name"]
        return updates

    def _why_waiting(self, run: int) -> str:
        """Return why a run does not start immediately; empty if it does."""
        living = self._queue.store.living()  # before the queued ones: it may start in between
        queued = self._queue.store.queued()
        row = next((row for row in queued if row.id == run), None)
        if row is None:
            return ""
        if self._queue.store.paused:
            return f"{row.name} is queued: the queue is paused"
        before = [*living, *(other for other in queued if other.id < run)]
        if not any(gpus_overlap(row.gpus, other.gpus) for other in before):
            return ""
        return f"{row.name} is queued and will start automatically"

    def _open_past(self, data: Updates) -> Updates:
        """Load what the page's scripts ask for: a past run by number, a preset or tab by name, the options of a
        measured variant, or "undo"."""
        source: str = data[self.run.past] or ""
        kind, _, name = source.partition(":")
        match kind:
            case "undo":
                return self.form.changed(self._undo(data), data)
            case "preset":
                return self._open_preset({**data, self.preset: name})
            case "own-preset":
                return self._apply_preset(own_preset(self.name, name), data, None)
            case "tab":
                updates = self._take_over(name, data)
            case "options":
                updates = self._use_measured(name, data)
            case _:
                updates = self._load_past(source)
        return self._undoable(updates, data)

    def _use_measured(self, text: str, data: Updates) -> Updates:
        """Set the compile options, and those that save memory, as in a variant that was measured."""
        try:
            options = json.loads(text)
        except ValueError:
            options = None
        if not isinstance(options, dict) or not options.keys() <= {*SET_BY_VARIANTS, *SET_BY_SOME}:
            return {self.run.message: message("error", "These are not the options of a measured variant")}
        defaults = {name: self.form.options[name].default for name in SET_BY_VARIANTS}
        values = {**self.form.read(data), **defaults, **options}
        title = ", ".join(f"{name} = {str(value).lower()}" for name, value in options.items())
        title = f"Set {title}" if title else "Turned torch.compile off"
        return self._filled(
            values, data[self.family], data[self.file] or "", (), title, data[self.preset], unsaved=True
        )

    def _undoable(self, updates: Updates, data: Updates) -> Updates:
        """Return the updates that change something, with an Undo button if they replace the form's settings."""
        updates = self.form.changed(updates, data)
        if self.draft.state not in updates:
            return updates
        draft = self.draft.of(self.form.read(data), data[self.family], data[self.file] or "", data[self.preset])
        others = {"unknown": data[self.unknown], "prompts": data[self.form.prompts], "opened": data[self.opened]}
        return {**updates, self.before: {**draft, **others}, self.run.message: updates[self.run.message] + UNDO}

    def _undo(self, data: Updates) -> Updates:
        before = data[self.before]
        if not before:
            return {self.run.message: message("warning", "Nothing to undo")}
        secrets = {name: value for name, value in self.form.read(data).items() if self.form.options[name].secret}
        values = {**self.draft.values(before), **secrets}
        title = "Restored the previous settings"
        updates = self._filled(values, before["family"], before["file"], (), title, before["preset"], unsaved=True)
        updates |= {self.unknown: before["unknown"], self.form.prompts: before["prompts"]}
        return updates | {self.opened: before["opened"], self.before: {}}

    def _take_over(self, tab: str, data: Updates) -> Updates:
        """Copy model, images and output folder from another tab; everything else stays."""
        other = self._others.get(tab)
        if other is None:
            return {self.run.message: message("error", "There is no such tab to copy settings from")}
        draft = data[other.draft.state] or {}
        title = other.training.tab.title
        offered = other.draft.values(draft)
        names = [name for name in SHARED if name in offered and name in self.form.controls]
        taken = {name: offered[name] for name in names if offered[name] != self.form.options[name].default}
        if not taken:
            return {self.run.message: message("warning", f"No model, images or folders are set in the {title} tab yet")}
        family = draft["family"] if draft.get("family") in self._families else data[self.family]
        values = {**self.form.read(data), **taken}
        text = f"Copied from {title}"
        updates = self._filled(values, family, data[self.file] or "", (), text, data[self.preset], unsaved=True)
        links = ", ".join(self.form.links.named(name) for name in taken)
        return {**updates, self.run.message: message("ok", Html(f"Copied from {escape(title)}: {links}"))}

    def _load_past(self, run: str) -> Updates:
        """Load a past run's settings into the form. Save does not write to that run's own file."""
        row = self._queue.store.row(int(run)) if run.strip().isdecimal() else None
        if row is None:
            return {self.run.message: message("error", "This run is no longer in the list")}
        _, opened = opened_run(row)
        updates = self._filled(opened.values, opened.family, "", opened.remarks, f"Loaded the settings of {row.name}")
        return updates | {self.unknown: opened.unknown, self.opened: "", self.form.prompts: ""}

    def _print(self, data: Updates) -> Updates:
        prepared, _ = self._train(data, self.form.read(data), print_only=True)
        line = shell_line(prepared.command.argv)
        print(line, flush=True)
        title = "The command below contains all settings; it does not need a settings file"
        shown = self._message(prepared.remarks, title)
        return {self.run.message: shown, self.run.command: gr.update(value=printed_command(line), visible=True)}

    def _train(self, data: Updates, values: dict[str, Any], print_only: bool) -> tuple[Prepared, int | None]:
        family = data[self.family]
        unknown = data[self.unknown]
        prompts = self._prompts(data, values)
        return self.training.train_model(self._queue, values, family, unknown, print_only, self._allowed_paths, prompts)


def output_hint(path: str) -> str:
    """Return the whole path of a relative output folder: it begins where the GUI was started."""
    folder = Path(os.path.expanduser(unquoted(path or "").strip() or "."))
    return "" if folder.is_absolute() else hint(Recognised(f"Saves to {folder.absolute()}"))


def hint(recognised: Recognised, more: str = "") -> str:
    if not recognised.text:
        return ""
    tone = "warning" if recognised.warning else {True: "good", False: "bad", None: "plain"}[recognised.good]
    return f'<p class="hint hint-{tone}">{escape(recognised.text)}{more}</p>'


def offer(choice: str, family: str) -> str:
    """Return a button that switches the family; `choice` is the element id of the family radio."""
    return f' <button type="button" data-choose="{choice}:{family}">Switch to {FAMILY_TITLES[family]}</button>'


def take_over(tabs: Sequence[Tab]) -> str:
    """Return buttons that copy model, images and output folder from another tab (fields.js)."""
    buttons = "".join(f'<button type="button" data-load="tab:{tab.name}">{tab.title}</button>' for tab in tabs)
    return f"<span>Copy model, images and output folder from</span>{buttons}"
