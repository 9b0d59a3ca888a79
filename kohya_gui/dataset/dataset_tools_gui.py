"""Dataset preparation panels: concept folders for DreamBooth and LoRA, a metadata file for fine-tuning."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import FormComponent
from gradio.context import Context

from kohya_gui.dataset.dataset_tools import Concept, arrange
from kohya_gui.dataset.dataset_tools_metadata import NEEDED_FOR_LATENTS, Gathering, LatentsJob, gather
from kohya_gui.form.controls import BROWSE, QUIET, SEE_IMAGES, Form, Updates, shown, unquoted
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.runs.run_view import progress_bar
from kohya_gui.server.messages import Html, message
from sd_scripts.formats.disk import sentence_of
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState

EVERY = 1.0
"""Seconds between two updates of a running tool."""
FILLED = (
    *("train_data_dir", "reg_data_dir", "output_dir", "logging_dir"),
    *("in_json", "cache_latents", "cache_latents_to_disk"),
)
"""Options that the tools fill in."""
BUTTON: dict[str, Any] = {"size": "sm", "min_width": 170, "scale": 0}


@dataclass(frozen=True)
class Field:
    """A `shown_field` of a tool's record."""

    name: str
    value: bool | int | str
    label: str
    info: str | None
    placeholder: str = ""
    folder: bool = False
    wide: bool = False

    def control(self, tab: str) -> FormComponent:
        links = [BROWSE] * self.folder + [SEE_IMAGES] * (self.folder and "image" in self.name)
        face: dict[str, Any] = {
            "label": self.label,
            "info": " ".join(filter(None, (self.info, *links))) or None,
            "elem_id": f"{tab}-{self.name}",
            "elem_classes": ["option", "option-wide" if self.wide else "option-small"],
        }
        match self.value:
            case bool(on):
                return gr.Checkbox(on, **face)
            case int(number):
                return gr.Number(number, **face)
            case text:
                return gr.Textbox(text, placeholder=self.placeholder, max_lines=1, **face)


def fields_of(record: type[Concept] | type[Gathering]) -> tuple[Field, ...]:
    return tuple(Field(field.name, **field.metadata) for field in fields(record) if field.metadata)


CONCEPT = fields_of(Concept)
GATHERING = fields_of(Gathering)


def place_fields(form: Form, note: str, fields: Iterable[Field]) -> dict[str, FormComponent]:
    """Place a note and these fields here."""
    gr.Markdown(note, elem_classes="note")
    with gr.Row(elem_classes="fields"):
        return {field.name: field.control(form.tab) for field in fields}


def typed(fields: Mapping[str, FormComponent], data: Updates) -> dict[str, Any]:
    """Return the contents of the fields by name."""
    values = {name: data[control] for name, control in fields.items()}
    texts = {name for name, control in fields.items() if isinstance(control, gr.Textbox | gr.Dropdown)}
    return {name: unquoted(value or "") if name in texts else value for name, value in values.items()}


def panel_of(tab: str) -> str:
    """Return the id of the panel that a tool's fields are in."""
    return f"{tab}-panel-dataset-preparation"


def refused(error: ValueError | OSError, form: Form, fields: Iterable[Field]) -> str:
    """Return the error message of a tool, with links to its own fields and the form's."""
    links = form.links.with_fields({field.name: field for field in fields}, panel_of(form.tab))
    return links.refused(ValueError(sentence_of(error)))


class FolderHelper:
    """Copies images into `img/40_sks cat` and `reg/1_cat`, then fills in the tab's folders."""

    def __init__(self, form: Form, family: FormComponent, queue: RunQueue) -> None:
        self._form = form
        tab = form.tab
        with gr.Accordion("Dataset preparation", open=False, elem_id=panel_of(tab)):
            note = (
                "Copy images and their caption files into the folder layout that training reads. "
                "The originals stay where they are, and nothing is overwritten."
            )
            self.fields = place_fields(form, note, CONCEPT)
            with gr.Row(elem_classes="actions"):
                self._copy = gr.Button("Copy images", elem_id=f"{tab}-copy-images", **BUTTON)
                self._use = gr.Button(
                    "Use these folders", variant="primary", visible=False, elem_id=f"{tab}-use-folders", **BUTTON
                )
            self._message = gr.HTML(elem_id=f"{tab}-copied")
        self._options = gr.State({})

    def connect(self) -> None:
        self.fields["caption_extension"] = self._form.controls["caption_extension"]
        about: set[Any] = set(self.fields.values())
        done = [self._message, self._use, self._options]
        slow = {**QUIET, "show_progress": "full", "show_progress_on": self._message}
        self._copy.click(self._arrange, about, done, **slow)
        filled_by(self._use, self._options, self._message, self._form)

    def _arrange(self, data: Updates) -> list[Any]:
        concept = Concept(**typed(self.fields, data))
        try:
            for name in ("training_images", "regularisation_images", "destination"):
                self._form.allowed_paths.check(name, getattr(concept, name))
            done = arrange(concept)
        except (ValueError, OSError) as error:
            return [refused(error, self._form, CONCEPT), gr.update(visible=False), {}]
        warnings = [text for copied in done.copied for text in copied.warnings()]
        shown_message = message("warning" if warnings else "ok", "; ".join(map(str, done.copied)), warnings)
        return [shown_message, gr.update(visible=True), done.options]


class MetadataSteps:
    """Collects captions in a metadata file, caches latents in a separate process, then fills both in."""

    def __init__(self, form: Form, family: FormComponent, queue: RunQueue) -> None:
        self._form = form
        self._family = family
        tab = form.tab
        self._job = LatentsJob(queue)
        with gr.Accordion("Dataset preparation", open=False, elem_id=panel_of(tab)):
            note = (
                "Create the metadata file that this training reads in two steps. The second pays off for large "
                "datasets: it caches the latents with the settings below, so that later runs start immediately."
            )
            self.fields = place_fields(form, note, GATHERING)
            with gr.Row(elem_classes="actions"):
                self._gather = gr.Button("1. Collect captions", elem_id=f"{tab}-gather", **BUTTON)
                self._prepare = gr.Button("2. Cache latents", elem_id=f"{tab}-prepare-latents", **BUTTON)
                self._stop = gr.Button("Stop", variant="stop", visible=False, elem_id=f"{tab}-stop-latents", **BUTTON)
                self._use = gr.Button(
                    "Use for training", variant="primary", visible=False, elem_id=f"{tab}-use-metadata", **BUTTON
                )
            self._message = gr.HTML(elem_id=f"{tab}-gathered")
            self._progress = gr.HTML(elem_id=f"{tab}-latents-progress")
        self._options = gr.State({})
        self._seen = gr.State(())

    def connect(self) -> None:
        """Connect the buttons; the form's own settings decide how latents are cached."""
        fields: set[Any] = set(self.fields.values())
        controls = self._form.controls
        needed = {controls[name] for name in NEEDED_FOR_LATENTS if name in controls}
        done = [self._message, self._use, self._options]
        slow = {**QUIET, "show_progress": "full", "show_progress_on": self._message}
        self._gather.click(self._collect, fields, done, **slow)
        timer = gr.Timer(EVERY, active=False)  # active only while the tool runs, to keep the page fast
        look = [self._seen, self._progress, self._prepare, self._stop, self._use, self._options, timer]
        started = self._prepare.click(self._start, {*fields, *needed, self._family}, self._message, **QUIET)
        for event in (started, self._stop.click(self._job.stop, **QUIET)):
            event.then(self._show, self._seen, look, **QUIET)
        timer.tick(self._show, self._seen, look, **QUIET)
        if page := Context.root_block:
            page.load(self._show, self._seen, look, **QUIET)  # for a page opened while it runs
        filled_by(self._use, self._options, self._message, self._form)

    def _collect(self, data: Updates) -> list[Any]:
        try:
            asked = self._asked(data)
            gathered = gather(asked)
        except (ValueError, OSError) as error:
            return [refused(error, self._form, GATHERING), gr.skip(), gr.skip()]
        options = {"in_json": str(gathered.file), "train_data_dir": str(asked.images)}
        text = f"Saved the captions of {gathered.images} images to {gathered.file}"
        shown_message = message("warning" if gathered.remarks else "ok", text, gathered.remarks)
        return [shown_message, gr.update(visible=True), options]

    def _start(self, data: Updates) -> str:
        try:
            self._job.start(self._asked(data), self._form.read(data, NEEDED_FOR_LATENTS), data[self._family])
        except (ValueError, OSError) as error:
            return refused(error, self._form, GATHERING)
        return ""

    def _asked(self, data: Updates) -> Gathering:
        asked = Gathering(**typed(self.fields, data))
        self._form.allowed_paths.check("image_folder", asked.images)
        for file in (asked.words_file, asked.latents_file):
            self._form.allowed_paths.check("metadata_folder", file)
        return asked

    def _show(self, seen: tuple[str, bool, int]) -> list[Any]:
        """Return updates if anything changed since `seen`, otherwise none."""
        job = self._job.watched
        asked = self._job.asked
        if job is None or asked is None:
            return [gr.skip()] * 7
        run_state = job.refresh()
        now = (job.folder.path.name, job.waiting, run_state.event_count)
        if now == seen:
            return [gr.skip()] * 7
        ready = run_state.state == "finished"
        file = asked.latents_file if ready else asked.words_file
        cached = dict.fromkeys(("cache_latents", "cache_latents_to_disk"), True) if ready else {}
        return [
            now,
            latents_view(run_state, file, self._job.waits_for, self._form.links),
            gr.update(interactive=run_state.over),
            gr.update(visible=not run_state.over, interactive=run_state.state != "stopping"),
            gr.update(visible=run_state.over),
            {"in_json": str(file), "train_data_dir": str(asked.images), **cached},
            gr.Timer(active=not run_state.over),
        ]


def latents_view(run_state: RunState, file: Path, waits_for: str = "", links: FieldLinks = NO_LINKS) -> str:
    """Show the progress of a job, the run it waits for, or its outcome."""
    if waits_for:
        return message("note", f"Starts when {waits_for} ends, before queued runs, if the GUI runs then")
    if run_state.state == "finished":
        text = f"Cached the latents of {run_state.total} images next to them and saved their sizes to {file}"
        return links.box("warning" if run_state.warnings else "ok", text, run_state.warnings)
    if run_state.state == "stopped":
        return message("warning", "Stopped. Finished latents are kept, and the next start continues from there")
    if run_state.over:
        return links.box("error", links.sentence(run_state.failure.get("error", "")), run_state.warnings)
    if not run_state.total:
        return f'<div class="run">{progress_bar(None, run_state.doing)}</div>'
    count = f"{run_state.doing} {run_state.done} of {run_state.total}"
    return f'<div class="run">{progress_bar(run_state.done / run_state.total, count)}</div>'


def filled_by(button: gr.Button, options: gr.State, message_box: gr.HTML, form: Form) -> None:
    """Let a button write a tool's options into their controls."""
    outputs = [*(form.controls[name] for name in FILLED if name in form.controls), message_box]

    def write(values: Mapping[str, Any]) -> Updates:
        labels = ", ".join(form.links.named(name) for name in values if name in form.controls)
        return {**fill(form, values), message_box: message("ok", Html(f"Filled in: {labels}"))}

    form.write_events.append(button.click(write, options, outputs, **QUIET))


def fill(form: Form, values: Mapping[str, Any]) -> Updates:
    """Return updates that write these options into their controls."""
    return {form.controls[name]: shown(form.options[name], values[name]) for name in values if name in form.controls}
