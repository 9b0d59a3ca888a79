"""Options in the page's messages and hints: named by the field's label, with a link that leads to the field."""

import re
from collections.abc import Mapping, Sequence
from html import escape

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.messages import Html, Kind, message
from sd_scripts.options.spec import Option

NAME = re.compile(r"`?\b([a-z0-9]+(?:_[a-z0-9]+)+)\b(?!\.\w)`?")
"""An option's name in a text; those of one word could be any word."""


def labelled(text: str, options: Mapping[str, Option]) -> str:
    """A hint in Markdown with the labels of other fields in the place of their keys."""
    return NAME.sub(lambda found: f"*{_label(options[found[1]])}*" if found[1] in options else found[0], text)


def _label(option: Option) -> str:
    return option.label.removesuffix(f" ({option.name})")


class FieldLinks:
    """Sentences that begin with an option's name, as the page shows them."""

    def __init__(self, options: Mapping[str, Option], controls: Mapping[str, FormComponent]) -> None:
        self._options, self._controls = options, controls

    def sentence(self, said: object) -> Html:
        """Base model (pretrained_model_name_or_path): ..., of a sentence that begins with the key."""
        name, colon, why = str(said).partition(": ")
        names = name.split(", ")
        if not colon or not all(each in self._controls for each in names):
            return self._linked(str(said))
        return Html(f"{', '.join(map(self.named, names))}: {self._linked(why)}")

    def named(self, name: str) -> Html:
        """The label as a link, and the key."""
        if name not in self._controls:
            return Html(escape(name))
        return Html(f"{self._link(name, _label(self._options[name]))} <code>({name})</code>")

    def told(self, kind: Kind, text: object, remarks: Sequence[object] = ()) -> str:
        """A message with a sentence for each remark."""
        return message(kind, text, map(self.sentence, remarks))

    def refused(self, error: ValueError, *, start: bool = False) -> str:
        """Every problem, each with a link to its field; the page marks the fields, and goes to the first at `start`."""
        sentences = str(error).splitlines() or [type(error).__name__]
        names = [name for said in sentences for name in said.partition(": ")[0].split(", ") if name in self._controls]
        wrong = " ".join(dict.fromkeys(self._id(name) for name in names))
        face = f' data-wrong="{wrong}"{" data-go" if start and wrong else ""}'
        if len(sentences) == 1:
            return message("error", self.sentence(sentences[0]), face=face)
        return message("error", f"{len(sentences)} problems to fix", map(self.sentence, sentences), face=face)

    def _linked(self, text: str) -> Html:
        """Names within a sentence stay as they are, and lead to their fields too."""
        parts, end = [], 0
        for found in NAME.finditer(text):
            if found[1] in self._controls:
                parts += [escape(text[end : found.start()]), self._link(found[1], found[1])]
                end = found.end()
        return Html("".join([*parts, escape(text[end:])]))

    def _link(self, name: str, words: str) -> str:
        about, panels = f"{_label(self._options[name])} ({name})", " ".join(panels_around(self._controls[name]))
        return (
            f'<button type="button" class="field-link" data-field="{self._id(name)}" data-panels="{panels}" '
            f'title="{escape(about)}">{escape(words)}</button>'
        )

    def _id(self, name: str) -> str:
        return self._controls[name].elem_id or ""


def panels_around(component: FormComponent) -> list[str]:
    """The ids of the accordions that a control stands in, the outermost first."""
    found, block = [], component.parent
    while block is not None:
        if isinstance(block, gr.Accordion) and block.elem_id:
            found.append(block.elem_id)
        block = block.parent
    return found[::-1]
