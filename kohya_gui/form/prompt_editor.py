"""The sample prompt editor of the page, which shows how training reads each prompt."""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import FormComponent
from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.controls import QUIET, Form, Updates, shown, unquoted
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.form.prompt_media import PromptMedia
from kohya_gui.server.json_routes import post
from kohya_gui.server.messages import Html, message
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.documents import read_text
from sd_scripts.formats.words import some
from sd_scripts.options.generating.prompt_lines import (
    LINE_OPTIONS,
    Entry,
    SamplePrompt,
    check_kind,
    parse_prompts,
    size_of,
    with_effect,
)
from sd_scripts.options.generating.sampling import SAMPLERS
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.catalog import FAMILY_TITLES

FILE = "sample_prompts"
ABOUT = (FILE, "output_dir", "output_name", "sample_sampler")
"""Options that decide where the prompts are and how they are read."""
CHECKED = ("tab", "text", "file", "family", "sampler", "sample_model")
"""What the page sends while prompts are typed."""
EXAMPLE = "a photo of sks cat on a chair --w 1024 --h 1024 --d 1 --s 30\na drawing of sks cat, side view --d 2"
LARGEST = 1_000_000
"""Largest file, in bytes, that the page edits."""
SHOWN = 40
"""Prompts explained at most."""
BUTTON: dict[str, Any] = {"size": "sm", "min_width": 120, "scale": 0}


class PromptEditor:
    """A text with one prompt per line, or TOML or JSON as in the file, checked while typing."""

    def __init__(self, form: Form, family: FormComponent, queue: RunQueue) -> None:
        self._form = form
        self._family = family
        tab = form.tab
        with gr.Row(elem_classes="actions"):
            self._edit = gr.Button("Edit prompts", elem_id=f"{tab}-edit-prompts", **BUTTON)
        with gr.Column(visible=False, elem_classes="prompt-editor", elem_id=f"{tab}-prompt-editor") as self._box:
            self._text = gr.Textbox(
                label="Prompts",
                info="One prompt per line, followed by its options. Lines that begin with # are ignored.",
                placeholder=EXAMPLE,
                lines=5,
                max_lines=20,
                elem_id=f"{tab}-prompts",
                elem_classes="option",
            )
            # filled in by prompts.js: an event per keystroke would make typing slow
            gr.HTML('<div class="inserts"></div>', elem_id=f"{tab}-prompt-options")
            gr.HTML('<div class="check" aria-live="polite"></div>', elem_id=f"{tab}-prompts-check")
            with gr.Row(elem_classes="actions"):
                self._save = gr.Button("Save prompts", variant="primary", elem_id=f"{tab}-save-prompts", **BUTTON)
                self._close = gr.Button("Close", elem_id=f"{tab}-close-prompts", **BUTTON)
        self._message = gr.HTML(elem_id=f"{tab}-prompts-message")
        self._opened = gr.State(("", ""))
        """The file opened or saved last, and its text at that time."""
        form.prompt_editor = self

    @property
    def text(self) -> FormComponent:
        """The component with the prompts as they are typed."""
        return self._text

    @property
    def inputs(self) -> set[Any]:
        """The components that `unsaved` reads."""
        return {self._text, self._opened}

    def unsaved(self, data: Mapping[Any, Any]) -> str:
        """Return the prompts in the editor if they are in no file; empty otherwise."""
        text: str = (data.get(self._text) or "").strip()
        _, saved = data.get(self._opened) or ("", "")
        return text if text != saved.strip() else ""

    def connect(self) -> None:
        """Connect the editor to the file named in the form; a saved file is filled in there."""
        form = self._form
        about = {form.controls[name] for name in ABOUT if name in form.controls}
        page: set[Any] = {*about, self._family, self._text, self._opened, form.prompts}
        shape = [self._edit, self._box, self._text, self._message, self._opened]
        opened = self._edit.click(self._open, page, shape, **QUIET)
        opened.then(None, js=f"() => checkPrompts('{form.tab}')", **QUIET)
        self._close.click(self._shut, None, shape, **QUIET)
        saved = [form.controls[FILE], self._message, self._opened, form.prompts]
        form.write_events.append(self._save.click(self._write, page, saved, **QUIET))

    def _open(self, data: Updates) -> Updates:
        text: str = data[self._text] or ""
        try:
            values = self._form.read(data, ABOUT)
            path = prompt_file(values, self._form.allowed_paths)
            content = saved_text(path)
        except ValueError as error:
            return {self._message: self._form.links.refused(error)}
        notice = f"Editing {path}" if path.exists() else f"{path} is created when you save"
        opened = (str(path), content)
        if not content and not values.get(FILE):
            content = data[self._form.prompts] or ""  # in no file yet
        last_place, last_text = data[self._opened]
        if last_place == str(path) and text != last_text:
            notice = f"Your unsaved changes to {path} are still here"
            content = text
            opened = data[self._opened]
        return {
            self._edit: gr.update(visible=False),
            self._box: gr.update(visible=True),
            self._text: content,
            self._opened: opened,
            self._message: message("ok", notice),
        }

    def _shut(self) -> Updates:
        return {self._edit: gr.update(visible=True), self._box: gr.update(visible=False), self._message: ""}

    def _write(self, data: Updates) -> Updates:
        text: str = (data[self._text] or "").rstrip() + "\n"
        values = self._form.read(data, ABOUT)
        try:
            path = prompt_file(values, self._form.allowed_paths)
            prompts = parse_prompts(text, path).prompts(card_of(data[self._family]).sample_defaults)
            content = saved_text(path)
        except ValueError as error:
            return {self._message: message("error", Html(f"Not saved: {self._form.links.sentence(error)}"))}
        if content and data[self._opened] != (str(path), content) and content != text:
            warning = f"{path} changed since it was opened here. Save again to overwrite it"
            return {self._message: message("warning", warning), self._opened: (str(path), content)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            unwritten = ValueError(f"{FILE}: '{path}' cannot be written: {error.strerror}")
            return {self._message: self._form.links.refused(unwritten)}
        named = values.get(FILE) or str(path)
        count = f"{len(prompts)} prompts" if len(prompts) > 1 else "1 prompt"
        return {
            self._form.controls[FILE]: shown(self._form.options[FILE], named),
            self._form.prompts: "",
            self._message: message("ok", f"Saved to {path}: {count}"),
            self._opened: (str(path), text),
        }


def prompt_file(values: Mapping[str, Any], allowed_paths: AllowedPaths = EVERYWHERE) -> Path:
    """Return the prompt file in the settings, else one next to the results. Raises ValueError for an invalid path."""
    if name := unquoted(values.get(FILE) or "").strip():
        path = allowed_paths.check(FILE, name)
        check_kind(path)
        return path
    folder = allowed_paths.check("output_dir", values.get("output_dir") or ".")
    return allowed_paths.check("output_name", folder / f"{values.get('output_name') or 'last'}-prompts.txt")


def saved_text(path: Path) -> str:
    """Return the text of a prompt file, empty if it does not exist. Raises ValueError, one sentence."""
    try:
        if path.is_file() and path.stat().st_size > LARGEST:
            raise ValueError(f"'{path}' has more than 1 MB; edit it elsewhere")
        return read_text(path) if path.exists() else ""
    except OSError as error:
        raise ValueError(f"{FILE}: '{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{FILE}: {error}") from error


def routes(queue: RunQueue, allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks]) -> list[Route]:
    """Return the route that checks prompts while typing, for `launch(app_kwargs={"routes": ...})`; `links` to the
    fields, by tab."""

    def check(request: Request, body: Mapping[str, Any]) -> dict[str, str]:
        """Check the text in the page; its file is not read."""
        try:
            tab, text, file, family, sampler, sample_model = (str(body[key]) for key in CHECKED)
            path = Path(unquoted(file).strip() or "prompts.txt")
            options = inserts(family)
            media = PromptMedia(card_of(family), queue, allowed_paths)
            samples = unquoted(sample_model).strip()
            explanation = meaning(text[:LARGEST], path, family, sampler, samples, links.get(tab, NO_LINKS), media)
        except (ValueError, KeyError) as error:
            raise ValueError("tab, text, file, family, sampler and sample_model are required") from error
        return {"options": options if path.suffix == ".txt" else "", "check": explanation}

    return [post("prompts", check)]


def meaning(
    text: str,
    path: Path,
    family: str,
    sampler: str,
    sample_model: str = "",
    links: FieldLinks = NO_LINKS,
    media: PromptMedia | None = None,
) -> str:
    """Explain, prompt by prompt, how training of this family reads the text, with its images. `sample_model`: the model
    that samples are made with; empty: the trained one."""
    media = media or PromptMedia(card_of(family), None)
    if not text.strip():
        return ""
    try:
        check_kind(path)
        file = parse_prompts(text, path)
        prompts = file.prompts(card_of(family).defaults_of_samples(sample_model))
    except ValueError as error:
        return message("error", links.sentence(error))
    rows = []
    for prompt, entry in zip(prompts[:SHOWN], file.entries, strict=False):
        found = (*remarks(prompt, entry, family), *media.problems(prompt))
        warnings = "".join(f'<p class="warn">{links.sentence(text)}</p>' for text in found)
        words = escape(prompt.prompt) or '<i class="quiet">empty prompt</i>'
        about = f'<p class="quiet">{escape(summary(prompt, family, sampler))}</p>'
        rows.append(f"<li><b>{words}</b>{about}{media.html(prompt)}{warnings}</li>")
    more = f'<p class="quiet">and {len(prompts) - SHOWN} more</p>' if len(prompts) > SHOWN else ""
    return f'<ol class="prompts-read">{"".join(rows)}</ol>{more}'


def summary(prompt: SamplePrompt, family: str, sampler: str) -> str:
    """Summarise a prompt as "1024 × 768, 30 steps, seed 1, CFG 7.5, sampler euler_a"."""
    card = card_of(family)
    height, width = size_of(prompt, card.side_multiple)
    embedded = card.has("guidance")
    prompt = with_effect(prompt, card.capabilities)
    parts = [
        f"{width} × {height}",
        _length(prompt, card),
        f"{prompt.steps} steps",
        "random seed" if prompt.seed is None else f"seed {prompt.seed}",
        f"guidance {prompt.guidance:g}" if embedded else f"CFG {prompt.scale:g}",
        f"CFG {prompt.scale:g}" if embedded and prompt.scale != 1 else "",
        f"shift {prompt.flow_shift:g}" if prompt.flow_shift is not None and card.has("flow_shift") else "",
        f"sampler {prompt.sampler or sampler}" if card.has("noise_schedule") else "",
        f"control images: {some([Path(file).name for file in prompt.control_images])}" if prompt.control_images else "",
        f"begins with {Path(prompt.start_image).name}" if prompt.start_image else "",
        f"ends with {Path(prompt.end_image).name}" if prompt.end_image else "",
        f"follows {Path(prompt.control_clip).name}" if prompt.control_clip else "",
        f"negative prompt: {prompt.negative_prompt}" if prompt.negative_prompt and prompt.scale != 1 else "",
    ]
    return ", ".join(part for part in parts if part)


def _length(prompt: SamplePrompt, card: FamilyCard) -> str:
    """Return the length of a clip as "81 frames, 5.1 s"; empty for an image."""
    frames = card.clips.fitting(prompt.frames) if card.clips else 1
    if frames == 1 or not card.clips:
        return ""
    fps = prompt.fps or card.clips.fps
    return f"{frames} frames, {frames / fps:.1f} s at {fps:g} fps"


def remarks(prompt: SamplePrompt, entry: Entry, family: str) -> Iterable[str]:
    """Yield warnings about options that may not have the intended effect."""
    yield from entry.dropped
    for option in LINE_OPTIONS:
        if option.key in entry.keys and not option.works_with(card_of(family).capabilities):
            yield f"--{option.letters} has no effect for {FAMILY_TITLES[family]}"
    if prompt.negative_prompt and prompt.scale == 1:
        yield "the negative prompt has no effect at CFG scale (--l) 1"
    multiple = card_of(family).side_multiple
    height, width = size_of(prompt, multiple)
    if (height, width) != (prompt.height, prompt.width):
        yield f"{prompt.width} × {prompt.height} becomes {width} × {height}: sides are multiples of {multiple}"
    yield from (text for _, text in card_of(family).prompt_remarks(prompt))
    clips = card_of(family).clips
    if clips and (frames := clips.fitting(prompt.frames)) != prompt.frames:
        step = clips.frame_step
        yield f"{prompt.frames} frames become {frames}: clips have a multiple of {step} frames, plus one"
    if card_of(family).has("noise_schedule") and prompt.sampler and prompt.sampler not in SAMPLERS:
        yield f"unknown sampler {prompt.sampler}: choose one that sample_sampler lists"


def inserts(family: str) -> str:
    """Return buttons that append an option to the current line (prompts.js)."""
    buttons = "".join(
        f'<button type="button" data-insert="{option.letters}" data-value="{option.example}" '
        f'title="{escape(option.help)}"><code>--{option.letters}</code> '
        f"{option.label[0].upper()}{option.label[1:]}</button>"
        for option in LINE_OPTIONS
        if option.works_with(card_of(family).capabilities)
    )
    return f'<span class="quiet">Add to line</span>{buttons}'
