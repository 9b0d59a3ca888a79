"""Dataset preparation panels: concept folders for DreamBooth and LoRA, a metadata file for fine-tuning.

Each is laid out when constructed and connected once all controls of its tab exist, before the draft is connected to
Form.taken.
"""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import FormComponent
from gradio.context import Context

from kohya_gui.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.controls import BROWSE, QUIET, Form, given, shown, unquoted
from kohya_gui.dataset_tools import Arranged, Concept, arrange
from kohya_gui.dataset_tools_metadata import NEEDED_FOR_LATENTS, Gathering, LatentsJob, gather
from kohya_gui.messages import Html, message
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
Updates = dict[Any, Any]


class FolderHelper:
    """Copies images into `img/40_sks cat` and `reg/1_cat`, then fills in the tab's folders."""

    def __init__(self, tab: str, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self._tab, self._allowed_paths = tab, allowed_paths
        with gr.Accordion("Dataset preparation", open=False, elem_id=f"{tab}-panel-dataset-preparation"):
            gr.Markdown(
                "Copy images and their caption files into the folder layout that training reads. "
                "The originals stay where they are, and nothing is overwritten.",
                elem_classes="note",
            )
            with gr.Row(elem_classes="fields"):
                self._instance = text_field(
                    tab, "instance-prompt", "Instance prompt", "A rare word that stands for the concept.", "sks"
                )
                self._class = text_field(
                    tab, "class-prompt", "Class prompt", "What kind of thing the concept is.", "cat"
                )
                self._images = text_field(
                    tab, "training-images", "Training images", "Folder of the images to train on.", folder=True
                )
                self._repeats = self._number(
                    "training-repeats", "Repeats", 40, "How often each image is seen per epoch."
                )
                self._reg_images = text_field(
                    tab,
                    "regularisation-images",
                    "Regularisation images",
                    "Optional: folder of other images of the class.",
                    folder=True,
                )
                self._reg_repeats = self._number("regularisation-repeats", "Regularisation repeats", 1)
                self._destination = text_field(
                    tab,
                    "destination",
                    "Destination",
                    "Folder in which img, reg, log and model are created.",
                    folder=True,
                    wide=True,
                )
            with gr.Row(elem_classes="actions"):
                self._copy = gr.Button("Copy images", elem_id=f"{tab}-copy-images", **BUTTON)
                self._use = gr.Button(
                    "Use these folders", variant="primary", visible=False, elem_id=f"{tab}-use-folders", **BUTTON
                )
            self._message = gr.HTML(elem_id=f"{tab}-copied")
        self._options = gr.State({})

    def _number(self, name: str, label: str, value: int, info: str | None = None) -> gr.Number:
        face: dict[str, Any] = {"elem_id": f"{self._tab}-{name}", "elem_classes": ["option", "option-words"]}
        return gr.Number(value, label=label, info=info, **face)

    def connect(self, form: Form) -> None:
        """Connect the buttons to the controls of this form."""
        controls = form.controls
        fields = [
            self._instance, self._class, self._images, self._repeats, self._reg_images, self._reg_repeats,
            self._destination,
        ]  # fmt: skip
        about = [*fields, *([controls["caption_extension"]] if "caption_extension" in controls else [])]
        done = [self._message, self._use, self._options]
        self._copy.click(self._arrange, about, done, show_progress_on=self._message, api_visibility="private")
        filled_by(self._use, self._options, self._message, form)

    def _arrange(
        self,
        instance: str,
        kind: str,
        images: str,
        repeats: int,
        reg_images: str,
        reg_repeats: int,
        destination: str,
        caption_extension: str = ".txt",
    ) -> list[Any]:
        concept = Concept(
            instance_prompt=instance or "",
            class_prompt=kind or "",
            training_images=unquoted(images or ""),
            repeats=repeats,
            regularisation_images=unquoted(reg_images or ""),
            regularisation_repeats=reg_repeats,
            destination=unquoted(destination or ""),
            caption_extension=caption_extension or ".txt",
        )
        try:
            for name in ("training_images", "regularisation_images", "destination"):
                self._allowed_paths.check(name.replace("_", " "), getattr(concept, name))
            done = arrange(concept)
        except (ValueError, OSError) as error:
            return [message("error", sentence_of(error)), gr.update(visible=False), {}]
        return [arranged_message(done), gr.update(visible=True), done.options]


def arranged_message(done: Arranged) -> str:
    told = [text for copied in done.copied for text in copied.told()]
    return message("warning" if told else "ok", "; ".join(map(str, done.copied)), told)


class MetadataSteps:
    """Collects captions in a metadata file, caches latents in a separate process, then fills both in."""

    def __init__(self, tab: str, queue: RunQueue, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self._tab, self._allowed_paths = tab, allowed_paths
        self._job = LatentsJob(queue)
        with gr.Accordion("Dataset preparation", open=False, elem_id=f"{tab}-panel-dataset-preparation"):
            gr.Markdown(
                "Create the metadata file that this training reads in two steps. The second pays off for large "
                "datasets: it caches the latents with the settings below, so that later runs start at once.",
                elem_classes="note",
            )
            with gr.Row(elem_classes="fields"):
                self._images = text_field(
                    tab, "image-folder", "Image folder", "Folder of the training images.", wide=True, folder=True
                )
                self._metadata = text_field(
                    tab,
                    "metadata-folder",
                    "Metadata folder",
                    "Folder for the metadata files; empty is the image folder.",
                    folder=True,
                    wide=True,
                )
                self._captions = self._switch("take-captions", "Include captions", True)
                self._caption_ending = text_field(
                    tab, "captions-from", "Caption extension", "Extension of the caption files.", value=".txt"
                )
                self._tags = self._switch("take-tags", "Include tags", False)
                self._tag_ending = text_field(
                    tab, "tags-from", "Tag extension", "Extension of the tag files.", value=".tags"
                )
                self._recursive = self._switch(
                    "metadata-recursive", "Recursive", False, "Include images in subfolders."
                )
                self._full_path = self._switch(
                    "metadata-full-path", "Full paths", True, "Use full paths as keys, for images in several folders."
                )
                self._words_name = text_field(tab, "caption-metadata", "Captions file", value="meta_cap.json")
                self._latents_name = text_field(tab, "latent-metadata", "Latents file", value="meta_lat.json")
            with gr.Row(elem_classes="actions"):
                self._gather = gr.Button("1. Collect captions", elem_id=f"{tab}-gather", **BUTTON)
                self._prepare = gr.Button("2. Cache latents", elem_id=f"{tab}-prepare-latents", **BUTTON)
                self._stop = gr.Button("Stop", variant="stop", visible=False, elem_id=f"{tab}-stop-latents", **BUTTON)
                self._use = gr.Button(
                    "Use for training", variant="primary", visible=False, elem_id=f"{tab}-use-metadata", **BUTTON
                )
            self._message = gr.HTML(elem_id=f"{tab}-gathered")
            self._progress = gr.HTML(elem_id=f"{tab}-latents-progress")
        self._options, self._seen = gr.State({}), gr.State(())

    def _switch(self, name: str, label: str, on: bool, info: str | None = None) -> gr.Checkbox:
        face: dict[str, Any] = {"elem_id": f"{self._tab}-{name}", "elem_classes": ["option", "option-words"]}
        return gr.Checkbox(on, label=label, info=info, **face)

    def connect(self, form: Form, family: FormComponent) -> None:
        """Connect the buttons to the controls of this form, which also set how latents are cached."""
        fields: set[Any] = {
            self._images, self._metadata, self._captions, self._caption_ending, self._tags, self._tag_ending,
            self._recursive, self._full_path, self._words_name, self._latents_name,
        }  # fmt: skip
        needed = {name: form.controls[name] for name in NEEDED_FOR_LATENTS if name in form.controls}
        done = [self._message, self._use, self._options]

        def gather_words(data: Updates) -> list[Any]:
            try:
                asked = self._asked(data)
                file, told = gather(asked)
            except (ValueError, OSError) as error:
                return [message("error", sentence_of(error)), gr.skip(), gr.skip()]
            options = {"in_json": str(file), "train_data_dir": str(asked.images)}
            said = message("warning" if told[1:] else "ok", f"Saved the captions of {told[0]} to {file}", told[1:])
            return [said, gr.update(visible=True), options]

        def prepare(data: Updates) -> str:
            values = {name: given(form.options[name], data[control]) for name, control in needed.items()}
            try:
                self._job.start(self._asked(data), values, data[family])
            except (ValueError, OSError) as error:
                return message("error", sentence_of(error))
            return ""

        slow: dict[str, Any] = {"show_progress_on": self._message, "api_visibility": "private"}
        self._gather.click(gather_words, fields, done, **slow)
        timer = gr.Timer(EVERY, active=False)  # active only while the tool runs, to keep the page fast
        look = [self._seen, self._progress, self._prepare, self._stop, self._use, self._options, timer]
        started = self._prepare.click(prepare, {*fields, *needed.values(), family}, self._message, **QUIET)
        for event in (started, self._stop.click(self._job.stop, **QUIET)):
            event.then(self._show, self._seen, look, **QUIET)
        timer.tick(self._show, self._seen, look, **QUIET)
        if page := Context.root_block:
            page.load(self._show, self._seen, look, **QUIET)  # for a page opened while it runs
        filled_by(self._use, self._options, self._message, form)

    def _asked(self, data: Updates) -> Gathering:
        asked = Gathering(
            image_folder=unquoted(data[self._images] or ""),
            metadata_folder=unquoted(data[self._metadata] or ""),
            captions=(data[self._caption_ending] or "") if data[self._captions] else None,
            tags=(data[self._tag_ending] or "") if data[self._tags] else None,
            recursive=data[self._recursive],
            full_path=data[self._full_path],
            caption_metadata_filename=data[self._words_name] or "",
            latent_metadata_filename=data[self._latents_name] or "",
        )
        self._allowed_paths.check("image folder", asked.images)
        for file in (asked.words_file, asked.latents_file):
            self._allowed_paths.check("metadata folder", file)
        return asked

    def _show(self, seen: tuple[str, bool, int]) -> list[Any]:
        """Return updates if anything changed since `seen`, otherwise none."""
        job, asked = self._job.watched, self._job.asked
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
            latents_view(run_state, file, self._job.waits_for if job.waiting else ""),
            gr.update(interactive=run_state.over),
            gr.update(visible=not run_state.over, interactive=run_state.state != "stopping"),
            gr.update(visible=run_state.over),
            {"in_json": str(file), "train_data_dir": str(asked.images), **cached},
            gr.Timer(active=not run_state.over),
        ]


def latents_view(run_state: RunState, file: Path, waits_for: str = "") -> str:
    """Show the progress of a job, the run it waits for, or its outcome."""
    if waits_for:
        said = f"Waiting for the run {waits_for}; starts automatically when it ends, before queued runs"
        return message("note", f"{said}. Keep the GUI running")
    if run_state.state == "finished":
        said = f"Cached the latents of {run_state.total} images next to them and saved their sizes to {file}"
        return message("warning" if run_state.warnings else "ok", said, run_state.warnings)
    if run_state.state == "stopped":
        return message("warning", "Stopped. Finished latents are kept, and the next start continues from there")
    if run_state.over:
        return message("error", run_state.failure.get("error", ""), run_state.warnings)
    doing = "starting Python and PyTorch" if run_state.state == "starting" else run_state.phase
    doing = "stopping" if run_state.state == "stopping" else doing
    known = bool(run_state.total)
    width = 100 * run_state.done / run_state.total if known else 0
    count = f" {run_state.done} of {run_state.total}" if known else ""
    return (
        f'<div class="run"><div class="bar{"" if known else " bar-unknown"}"><i style="width:{width:.1f}%"></i></div>'
        f'<div class="run-phase">{escape(doing[:1].upper() + doing[1:])}{count}</div></div>'
    )


def text_field(
    tab: str,
    name: str,
    label: str,
    info: str | None = None,
    hint: str = "",
    *,
    value: str = "",
    wide: bool = False,
    folder: bool = False,
) -> gr.Textbox:
    """Return a text field of a tool; `folder` adds the link to the folder dialog."""
    return gr.Textbox(
        value,
        label=label,
        info=f"{info} {BROWSE}" if folder else info,
        placeholder=hint,
        max_lines=1,
        elem_id=f"{tab}-{name}",
        elem_classes=["option", "option-told" if wide else "option-words"],
    )


def filled_by(button: gr.Button, options: gr.State, told: gr.HTML, form: Form) -> None:
    """Let a button write a tool's options into their controls."""
    outputs = [*(form.controls[name] for name in FILLED if name in form.controls), told]
    form.taken.append(
        button.click(lambda made: {**fill(form, made), told: filled_message(form, made)}, options, outputs, **QUIET)
    )


def fill(form: Form, made: Mapping[str, Any]) -> Updates:
    """Return updates that write these options into their controls."""
    return {form.controls[name]: shown(form.options[name], made[name]) for name in made if name in form.controls}


def filled_message(form: Form, made: Mapping[str, Any]) -> str:
    named = ", ".join(form.links.named(name) for name in made if name in form.controls)
    return message("ok", Html(f"Filled in: {named}"))
