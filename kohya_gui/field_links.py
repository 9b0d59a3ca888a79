"""Links to fields in the page's messages and help texts: an option's key becomes its label, linked to the field."""

import re
from collections.abc import Mapping, Sequence
from html import escape

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.messages import Html, Kind, message
from sd_scripts.options.spec import Option

NAME = re.compile(r"`?\b([a-z0-9]+(?:_[a-z0-9]+)+)\b(?!\.\w)`?")
"""An option's name in a text; a single word could be any word, so an underscore is required."""


def labelled(text: str, options: Mapping[str, Option]) -> str:
    """Replace option keys in a Markdown help text by the labels of their fields."""
    return NAME.sub(lambda found: f"*{_label(options[found[1]])}*" if found[1] in options else found[0], text)


def _label(option: Option) -> str:
    return option.label.removesuffix(f" ({option.name})")


class FieldLinks:
    """Renders sentences that begin with an option's name for the page."""

    def __init__(self, options: Mapping[str, Option], controls: Mapping[str, FormComponent]) -> None:
        self._options, self._controls = options, controls

    def sentence(self, said: object) -> Html:
        """Render a sentence that begins with a key as "Base model (pretrained_model_name_or_path): ..."."""
        name, colon, why = str(said).partition(": ")
        names = name.split(", ")
        if not colon or not all(each in self._controls for each in names):
            return self._linked(str(said))
        return Html(f"{', '.join(map(self.named, names))}: {self._linked(why)}")

    def named(self, name: str) -> Html:
        """Return an option's label as a link, followed by its key."""
        if name not in self._controls:
            return Html(escape(name))
        return Html(f"{self._link(name, _label(self._options[name]))} <code>({name})</code>")

    def told(self, kind: Kind, text: object, remarks: Sequence[object] = ()) -> str:
        """Return a message with a sentence for each remark."""
        return message(kind, text, map(self.sentence, remarks))

    def refused(self, error: ValueError, *, start: bool = False) -> str:
        """List every problem with a link to its field; the page marks the fields and, at `start`, goes to the first."""
        sentences = str(error).splitlines() or [type(error).__name__]
        names = [name for said in sentences for name in said.partition(": ")[0].split(", ") if name in self._controls]
        wrong = " ".join(dict.fromkeys(self._id(name) for name in names))
        face = f' data-wrong="{wrong}"{" data-go" if start and wrong else ""}'
        if len(sentences) == 1:
            return message("error", self.sentence(sentences[0]), attributes=face)
        return message("error", f"{len(sentences)} problems to fix", map(self.sentence, sentences), attributes=face)

    def _linked(self, text: str) -> Html:
        """Link option names within a sentence to their fields, keeping the names."""
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
    """Return the ids of the accordions around a control, outermost first."""
    found, block = [], component.parent
    while block is not None:
        if isinstance(block, gr.Accordion) and block.elem_id:
            found.append(block.elem_id)
        block = block.parent
    return found[::-1]
