"""Build the control for each option. The GUI has no labels, ranges or defaults of its own."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.request import url2pathname

import gradio as gr
from gradio.components import FormComponent

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.field_links import FieldLinks, accordions_around, labelled, panels_around
from kohya_gui.form.visibility import rules, watched
from sd_scripts.formats.documents import split_lines
from sd_scripts.options.spec import Option, OptionGroup, Remark
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

SLIDER_STEPS = 64
"""An integer option with fewer values than this gets a slider."""
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "show_progress_on": (), "api_visibility": "private"}
"""Settings of internal events; showing progress nowhere saves the browser a walk over the page for each output.

Without Gradio's queue, which closes the stream of its answers after each: an event that the browser sends just then may
never be answered there, such as Start right after Print.
"""
BROWSER_SECRET = "no-secret"
"""Gradio encrypts the data it stores in the browser; a fixed key lets the next start of the GUI read it back."""
BROWSE = "[Browse…](#browse)"
"""Link in a path's help that opens the file dialog (browse.js)."""
SEE_IMAGES = "[See images](#see-images)"
"""A link to the tab Dataset (dataset.js)."""
MAKE_IMAGES = "[Generate them…](#make-images)"
"""A link to the dialog that generates regularisation images (regularisation.js)."""
KEY = "`{}` `?`"
"""An option's key above its help text, which a click copies, and the way to its documentation (search.js)."""
IMAGE_PLACES = ("train_data_dir", "reg_data_dir", "dataset_config", "conditioning_data_dir", "control_directory")
"""Options that name folders of images, or a file that does."""
Updates = dict[Any, Any]
"""Component -> its new value, or the update of its properties."""
UNSET = ("not set", "")
"""Gradio reserves None for "nothing chosen", so an unset choice is the empty string; Option.read understands it."""


def control(option: Option, tab: str, width: str, others: Mapping[str, Option], method: str) -> FormComponent:
    """Return the control of an option, with the element id `tab-name`.

    Its help text is the one for this training method and names the `others` by their labels. Options of only some
    model families are shown for these (visibility.js).
    """

    def text(words: str) -> str:
        return labelled(words.replace("<", "&lt;"), others)  # Gradio renders it as Markdown

    # Gradio lets no attributes through: the n-th <strong> is the n-th note
    parts = option.help_parts(method)
    hint = " ".join(f"**{text(words)}**" if families else text(words) for families, words in parts)
    links = [BROWSE] * option.path + [SEE_IMAGES] * (option.name in IMAGE_PLACES)
    links += [MAKE_IMAGES] * (option.name == "reg_data_dir")
    face: dict[str, Any] = {
        "label": option.label,
        "info": f"{KEY.format(option.name)}\n{' '.join((hint, *links))}",
        "value": shown(option, option.default),
        "elem_id": f"{tab}-{option.name}",
        "elem_classes": ["option", width],
        "interactive": True,
    }
    match kind(option):
        case "switch":
            return gr.Checkbox(**face)
        case "choice":
            choices = [(option.choice_labels.get(c, str(c)), c) for c in option.choices]
            return gr.Dropdown([UNSET, *choices] if option.nullable else choices, filterable=False, **face)
        case "suggestion":
            return gr.Dropdown(list(option.suggestions or option.choices), allow_custom_value=True, **face)
        case "slider":
            assert option.within
            low, high = option.within
            return gr.Slider(low, high, step=1 if option.type is int else 0.01, **face)
        case "number":
            # no minimum, maximum or precision: Gradio would show a toast or round silently
            return gr.Number(**face)
        case "secret":
            return gr.Textbox(type="password", placeholder=option.placeholder, **face)
        case _:
            several = option.many and option.type is str
            hint = "one per line" if several else "not set" if option.nullable else ""
            face |= {"lines": 2, "max_lines": 8} if several else {"lines": 1, "max_lines": 1}
            return gr.Textbox(placeholder=option.placeholder or hint, **face)


def kind(option: Option) -> str:
    """Return the kind of control for an option, decided by its type, never by its name."""
    if option.secret:
        return "secret"
    if option.type is bool:
        return "switch"
    if option.many or option.steps_or_fraction:
        return "text"
    if option.choices and not option.more_choices:
        return "choice"
    if option.suggestions or option.choices:
        return "suggestion"
    if option.type is str:
        return "text"
    if option.within and not option.nullable:
        low, high = option.within
        if (option.type is int and high - low < SLIDER_STEPS) or (option.type is float and (low, high) == (0, 1)):
            return "slider"
    # Gradio's Number turns an empty value into 0 when it comes into view, and writes 1e-6 as 0.000001
    return "text" if option.nullable or option.type is float else "number"


def shown(option: Option, value: Any) -> Any:
    """Return an option's value as the value of its control."""
    if option.many:
        return ("\n" if option.type is str else " ").join(map(str, value))
    if value is None:
        return ""
    if kind(option) == "text" and isinstance(value, float):
        short = f"{value:g}"  # 0 and 1e-05 rather than 0.0 and 0.00001
        return short if float(short) == value else repr(value)
    return str(value) if kind(option) == "text" else value


def given(option: Option, value: Any) -> Any:
    """Return a control's content as the option's value; unreadable input is kept for Option.problem to report."""
    if option.many and isinstance(value, str):
        words = split_lines(value) if option.type is str else value.replace(",", " ").split()
        value = [word.strip() for word in words if word.strip()]
    if value is None and option.type is str:  # a cleared dropdown
        value = ""
    return option.read(unquoted(value) if isinstance(value, str) else value)


def unquoted(text: str) -> str:
    """Return a path without the quotes or file:// that file managers and terminals put around a copied one. Other texts
    keep their quotes."""
    bare = text.strip()
    if bare.startswith("file:///") and "\n" not in bare:
        return url2pathname(bare.removeprefix("file://"))
    inner = bare[1:-1]
    whole = any(bare == f"{quote}{inner}{quote}" and quote not in inner for quote in "\"'")
    return inner if whole and ("/" in inner or "\\" in inner) else text


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommended values for a family, offered where the form has others."""

    family: str
    about: tuple[str, ...]
    """Options that decide the recommendation, and those it sets."""
    good: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Maps the current values to the recommended value of every option it sets."""
    text: str
    button: str

    def wanted(self, values: Mapping[str, Any]) -> bool:
        return any(values.get(name) != good for name, good in self.good(values).items())


class Tool(Protocol):
    """Contents of a tab besides options: laid out when constructed, connected once the form has all its controls."""

    def __init__(self, form: "Form", family: FormComponent, queue: RunQueue) -> None: ...

    def connect(self) -> None: ...


@dataclass(frozen=True)
class Panel:
    """An accordion: options by name, then the options of `rest` that no other panel takes.

    Options that the tab's method lacks are left out, so that tabs can share a panel.
    """

    title: str
    names: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    """Folded away, together with `rest`."""
    rest: tuple[type[OptionGroup], ...] = ()
    advice: tuple[Advice, ...] = ()
    note: str = ""
    lead: type[Tool] | None = None
    """Placed before the first option."""
    tool: type[Tool] | None = None
    """Placed below the panel or, with tool_inside, at its end."""
    tool_inside: bool = False
    open: bool = False
    late: bool = False
    """Placed below Advanced Training."""


class PromptSource(Protocol):
    """Sample prompts that somebody is typing."""

    @property
    def inputs(self) -> set[Any]: ...

    @property
    def text(self) -> FormComponent: ...

    def unsaved(self, data: Mapping[Any, Any]) -> str: ...


class Form:
    """The controls of some option groups by option name, read and written as one dict."""

    def __init__(
        self,
        tab: str,
        groups: Groups,
        method: str,
        without: Collection[str] = (),
        hinted: Collection[str] = (),
        allowed_paths: AllowedPaths = EVERYWHERE,
    ) -> None:
        self.tab = tab
        self._method = method
        self._hinted = hinted
        self.allowed_paths = allowed_paths
        self.options: dict[str, Option] = {
            o.name: o
            for group in groups
            for o in each_option(group)
            if not o.not_yet and method in o.methods and o.name not in without
        }
        self.group_of = {o.name: group for group in groups for o in each_option(group)}
        self.controls: dict[str, FormComponent] = {}
        self.links = FieldLinks(tab, self.options, self.controls, lambda name: panels_around(self.controls[name]))
        self.prompts = gr.BrowserState("", storage_key=f"{tab}-prompts-text", secret=BROWSER_SECRET, render=False)
        """Sample prompts from a kohya_ss file that have no file of their own yet."""
        self.prompt_editor: PromptSource | None = None
        self.hints: dict[str, gr.HTML] = {}
        """Option -> the line under its path control that describes the file or folder."""
        self.advice: list[tuple[Advice, gr.Row, gr.Button]] = []
        self.write_events: list[Any] = []
        """Events of tools and advice that write values into the form."""
        self._panels: list[tuple[gr.Accordion, list[str]]] = []

    def place(self, names: Iterable[str], lead: Callable[[], None] | None = None) -> None:
        """Place the controls of these options here, in a grid; `lead` lays out contents before them."""
        with gr.Row(elem_classes="fields"):
            if lead:
                lead()
            for name in names:
                if name in self.options:
                    option = self.options[name]
                    width = self._width(name)
                    self.controls[name] = control(option, self.tab, width, self.options, self._method)
                if name in self._hinted:
                    self.hints[name] = gr.HTML(elem_id=f"{self.tab}-{name}-hint", elem_classes="found")

    def _width(self, name: str) -> str:
        """Return the width class: a path or list of texts gets the whole row, anything else a third of it."""
        option = self.options[name]
        takes_row = name in self._hinted or option.path or (option.many and option.type is str)
        return "option-wide" if takes_row else "option-small"

    def panel(
        self,
        panel: Panel,
        more: Iterable[str] = (),
        lead: Callable[[], None] | None = None,
        tool: Callable[[], None] | None = None,
    ) -> None:
        """Lay out the accordion of a panel with `more` options folded away in it; hidden where none has an effect.

        `lead` lays out another control before the first, `tool` anything else at the end.
        """
        first = [name for name in dict.fromkeys(panel.names) if name in self.options]  # families may share some
        later = [name for name in more if name in self.options]
        if not first:
            first = later
            later = []
        if not first:
            return
        id = f"{self.tab}-panel-{panel.title.lower().replace(' ', '-').replace('.', '')}"
        with gr.Accordion(panel.title, open=panel.open, elem_id=id) as accordion:
            if panel.note:
                gr.Markdown(panel.note, elem_classes="note")
            for advice in panel.advice:
                self._advise(advice)
            self.place(first, lead)
            if later:
                with gr.Accordion("More", open=False, elem_id=f"{id}-more", elem_classes="more") as folded:
                    self.place(later)
                self._panels.append((folded, later))
            if tool:
                tool()
        self._panels.append((accordion, [*first, *later]))

    def _advise(self, advice: Advice) -> None:
        with gr.Row(elem_classes="advice", elem_id=f"{self.tab}-advice-{advice.family}") as row:
            gr.Markdown(advice.text)
            button = gr.Button(advice.button, size="sm", min_width=120, scale=0)
        self.advice.append((advice, row, button))

    def left_of(self, *groups: Any) -> list[str]:
        """Return the options of these groups that are not placed yet."""
        return [name for name in self.options if self.group_of[name] in groups and name not in self.controls]

    def sections(self) -> list[dict[str, Any]]:
        """Return the accordions in the order of the form: id, title, the title and ids of those around it, names of its
        options, and of those that are folded away under More."""
        names_in = {accordion.elem_id or "": names for accordion, names in self._panels}
        return [
            {
                "id": accordion.elem_id,
                "title": accordion.label,
                "group": next((around.label for around in accordions_around(accordion)), ""),
                "panels": [*panels_around(accordion), accordion.elem_id],
                "names": names,
                "more": names_in.get(f"{accordion.elem_id}-more", []),
            }
            for accordion, names in self._panels
            if "more" not in accordion.elem_classes
        ]

    def inputs(self) -> list[FormComponent]:
        return list(self.controls.values())

    def outputs(self) -> list[Any]:
        return [*self.controls.values(), *self.hints.values(), *(row for _, row, _ in self.advice)]

    def read(self, data: Mapping[Any, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the values of these or all options from the dict that Gradio passes for a set of inputs."""
        read_names = self.controls if names is None else [name for name in names if name in self.controls]
        return {name: given(self.options[name], data[self.controls[name]]) for name in read_names}

    def write(self, values: Mapping[str, Any], family: str = "") -> tuple[dict[Any, Any], list[Remark]]:
        """Return updates by control for a family's defaults overlaid by `values`, and remarks on values it cannot
        show."""
        full, remarks = self.complete(values, family)
        return {c: shown(self.options[name], full[name]) for name, c in self.controls.items()}, remarks

    def defaults_of(self, family: str, before: str, data: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return updates of the controls that show the default of the family `before`, where this family's differs."""
        options = {name: self.options[name] for name in self.with_own_defaults()}
        return {
            self.controls[name]: shown(options[name], options[name].default_for(family))
            for name, value in self.read(data, options).items()
            if value == options[name].default_for(before) != options[name].default_for(family)
        }

    def with_own_defaults(self) -> list[str]:
        """Return the options that have a different default for some family."""
        return [name for name in self.controls if self.options[name].family_defaults]

    def changed(self, updates: Mapping[Any, Any], now: Mapping[Any, Any]) -> dict[Any, Any]:
        """Drop updates of controls that already have the value: each write costs the browser milliseconds."""
        controls = set(self.controls.values())
        return {c: v for c, v in updates.items() if c not in controls or c not in now or now[c] != v}

    def first(self) -> dict[Any, Any]:
        """Return the values of the controls of a fresh page."""
        return {c: c.value for c in self.controls.values()}

    def complete(self, values: Mapping[str, Any], family: str = "") -> tuple[dict[str, Any], list[Remark]]:
        """Return a family's defaults overlaid by `values`; an invalid value gives a remark and the default stays."""
        full: dict[str, Any] = {}
        remarks = []
        for name in self.controls:
            option = self.options[name]
            full[name] = option.default_for(family)
            if name not in values:
                continue
            read = option.read(values[name])
            if problem := option.problem(read):
                remarks.append(Remark(name, f"{problem}; the page shows the default instead"))
            else:
                full[name] = read
        return full, remarks

    def advised(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        values = self._seen(values)
        return {row: gr.update(visible=advice.wanted(values)) for advice, row, _ in self.advice}

    def _seen(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values without paths outside the allowed folders."""
        return {
            name: v for name, v in values.items() if not self.allowed_paths.problems({name: v}, [self.options[name]])
        }

    def begin(self, values: Mapping[str, Any], family: str) -> None:
        """Fill a fresh page with the defaults overlaid by `values`."""
        full, _ = self.complete(values, family)
        for name, component in self.controls.items():
            component.value = shown(self.options[name], full[name])
        for row, update in self.advised(full).items():
            row.visible = update["visible"]
        panels = {accordion.elem_id or "": names for accordion, names in self._panels}
        advice = {row.elem_id or "": advice.family for advice, row, _ in self.advice}
        first = {name: component.value for name, component in self.controls.items()}
        self.rules = rules(self.options, panels, advice, family, first)

    def connect(self, family: FormComponent) -> None:
        """Let the browser show and hide controls when the family or a switch changes, and keep the advice current."""
        names = watched(self.options)
        decisive = [family, *(self.controls[name] for name in names)]
        follows = {name for name in names if self.options[name].active_with or self.options[name].shown_for}
        switches = [family, *(self.controls[name] for name in names if name not in follows)]
        show = f"(...now) => Forms.now('{self.tab}', ...now)"
        gr.on([c.change for c in switches], None, decisive, js=show, **QUIET)  # type: ignore[attr-defined]
        if self.advice:
            self._connect_advice()

    def _connect_advice(self) -> None:
        about = {name: self.controls[name] for advice, _, _ in self.advice for name in advice.about}
        rows = [row for _, row, _ in self.advice]
        after_changes(about.values(), lambda data: self.advised(self.read(data, about)), set(about.values()), rows)
        for advice, _, button in self.advice:
            self._connect_button(advice, button)

    def _connect_button(self, advice: Advice, button: gr.Button) -> None:
        about = {name: self.controls[name] for name in advice.about}

        def take(data: dict[Any, Any]) -> dict[Any, Any]:
            good = advice.good(self._seen(self.read(data, about)))
            return {about[name]: shown(self.options[name], value) for name, value in good.items()}

        self.write_events.append(button.click(take, set(about.values()), list(about.values()), **QUIET))


def after_changes(
    controls: Iterable[Any], look: Callable[..., Any], inputs: Collection[Any], output: gr.HTML | list[gr.Row]
) -> None:
    """Call `look` when one of the controls has changed; several changes together cause one call, after the last.

    Gradio repeats an event that came too early for all of its listeners, and two listeners then keep each other busy
    forever. So the call listens to its own event, which follows the change.
    """
    changes = [control.change for control in controls]
    gr.on(changes, None, js="() => {}", **QUIET).then(look, inputs, output, trigger_mode="always_last", **QUIET)
