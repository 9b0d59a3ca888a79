"""Links to fields in the page's messages and help texts: an option's key becomes its label, linked to the field.

Every form of the page has its `FieldLinks`: the training tabs, Generate, the LoRA tools and the dialogs. A message that
begins with a key is rendered here, whether it comes from a form, a plan, a run or a tool.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Protocol

import gradio as gr

from kohya_gui.server.json_routes import Refused
from kohya_gui.server.messages import Html, Kind, message
from sd_scripts.options.spec import Option

NAME = re.compile(r"`?\b([a-z0-9]+(?:_[a-z0-9]+)+)\b(?!\.\w)`?")
"""An option's name in a text; a single word could be any word, so an underscore is required."""


class Labelled(Protocol):
    """A field of a form."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...


def labelled(text: str, options: Mapping[str, Option]) -> str:
    """Replace option keys in a Markdown help text by the labels of their fields."""
    return NAME.sub(lambda name: f"*{_label(options[name[1]])}*" if name[1] in options else name[0], text)


def _label(option: Labelled) -> str:
    return option.label.removesuffix(f" ({option.name})")


def _head(sentence: str) -> tuple[list[str], str]:
    """Split a sentence into the words before its first colon, which may be options or flags, and the rest."""
    names, colon, rest = sentence.partition(": ")
    return ([name.removeprefix("--") for name in names.split(", ")], rest) if colon else ([], sentence)


class FieldLinks:
    """Renders sentences that begin with an option's name for the page.

    `options` may include the fields of a tool; their names are not keys, so they are not shown. `shown` are the options
    that have a field, whose element has the id `form-name`; `panels` returns the ids of the folded panels around it,
    outermost first.
    """

    def __init__(
        self,
        form: str,
        options: Mapping[str, Labelled],
        shown: Collection[str] | None = None,
        panels: Callable[[str], Sequence[str]] = lambda name: (),
    ) -> None:
        self._form = form
        self._options = options
        self._panels = panels
        self._shown = options if shown is None else shown

    def with_fields(self, fields: Mapping[str, Labelled], *panels: str) -> "FieldLinks":
        """Return links that also lead to the fields of a tool on the form, which are in these panels."""
        shown = {*self._shown, *fields}
        options = {**self._options, **fields}
        return FieldLinks(self._form, options, shown, lambda name: panels if name in fields else self._panels(name))

    def _split(self, sentence: str) -> tuple[list[str], str]:
        """Split a sentence into the options that it begins with, if any, and the rest."""
        names, rest = _head(sentence)
        return (names, rest) if all(name in self._shown for name in names) else ([], sentence)

    def sentence(self, text: object) -> Html:
        """Render a sentence that begins with a key as "Base model (pretrained_model_name_or_path): ..."."""
        names, rest = self._split(str(text))
        if not names:
            return self._linked(rest)
        return Html(f"{', '.join(map(self.named, names))}: {self._linked(rest)}")

    def words(self, text: object) -> str:
        """Return a sentence that begins with a key as plain text: "Base model: ..."."""
        names, rest = self._split(str(text))
        return f"{', '.join(_label(self._options[name]) for name in names)}: {rest}" if names else rest

    def named(self, name: str) -> Html:
        """Return an option's label as a link, followed by its key."""
        if name not in self._shown:
            return Html(escape(name))
        key = f" <code>({name})</code>" if isinstance(self._options[name], Option) else ""
        return Html(f"{self._link(name, _label(self._options[name]))}{key}")

    def box(self, kind: Kind, text: object, remarks: Sequence[object] = (), *, attributes: str = "") -> str:
        """Return a message with a sentence for each remark."""
        return message(kind, text, map(self.sentence, remarks), attributes=attributes)

    def refusal(self, sentences: Sequence[object]) -> Refused:
        """Return the error that answers a request which these sentences refuse."""
        lines = "\n".join(map(str, sentences))
        return Refused(lines, self.refused(ValueError(lines)))

    def target(self, sentence: object) -> str:
        """Return the attributes of an element that leads to the first field of a sentence; empty without one."""
        names, _ = self._split(str(sentence))
        return self._face(names[0]) if names else ""

    def set_button(self, name: str, value: str, words: str) -> Html:
        """Return a button that writes a value into a field (fields.js); empty if there is no such field."""
        if name not in self._shown:
            return Html()
        face = f'data-set="{self._id(name)}" data-value="{escape(value)}" data-panels="{" ".join(self._panels(name))}"'
        return Html(f' <button type="button" {face}>{escape(words)}</button>')

    def refused(self, error: ValueError, *, start: bool = False) -> str:
        """List every problem with a link to its field; the page marks the fields and, at `start`, focuses the first."""
        sentences = str(error).splitlines() or [type(error).__name__]
        names = [name for sentence in sentences for name in _head(sentence)[0] if name in self._shown]
        wrong = " ".join(dict.fromkeys(self._id(name) for name in names))
        face = f' data-wrong="{wrong}"{" data-go" if start and wrong else ""}'
        if len(sentences) == 1:
            return message("error", self.sentence(sentences[0]), attributes=face)
        return message("error", f"{len(sentences)} problems to fix", map(self.sentence, sentences), attributes=face)

    def _linked(self, text: str) -> Html:
        """Link option names within a sentence to their fields, keeping the names."""
        parts = []
        end = 0
        for name in NAME.finditer(text):
            if name[1] in self._shown:
                parts += [escape(text[end : name.start()]), self._link(name[1], name[1])]
                end = name.end()
        return Html("".join([*parts, escape(text[end:])]))

    def _link(self, name: str, words: str) -> str:
        option = self._options[name]
        about = escape(_label(option) + (f" ({name})" if isinstance(option, Option) else ""))
        face = f'type="button" class="field-link" {self._face(name)} title="{about}"'
        return f"<button {face}>{escape(words)}</button>"

    def _face(self, name: str) -> str:
        return f'data-field="{self._id(name)}" data-panels="{" ".join(self._panels(name))}"'

    def _id(self, name: str) -> str:
        return f"{self._form}-{name}"


NO_LINKS = FieldLinks("", {})
"""For sentences that belong to no form."""


def panels_around(component: gr.blocks.Block) -> list[str]:
    """Return the ids of the accordions around a control or accordion, outermost first."""
    return [id for around in accordions_around(component) if (id := around.elem_id)]


def accordions_around(component: gr.blocks.Block) -> list[gr.Accordion]:
    """Return the accordions around a control or accordion, outermost first."""
    found = []
    block = component.parent
    while block is not None:
        if isinstance(block, gr.Accordion):
            found.append(block)
        block = block.parent
    return found[::-1]
