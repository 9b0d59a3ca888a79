"""The index of all settings for the page's search (search.js), and the sections of each training tab.

It comes from the options' declarations, so that it also has the settings of panels that the browser has not built yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.form.controls import UNSET, Form, kind, shown
from kohya_gui.form.field_links import labelled
from kohya_gui.kohya.labels import kohya_names
from kohya_gui.server.json_routes import Unchanging, get
from kohya_gui.tabs import Tab
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.dataset import AugmentOptions, CacheOptions, CaptionOptions
from sd_scripts.options.full import FusedOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.loss import LossOptions, NoiseOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions
from sd_scripts.options.saving import EmaOptions
from sd_scripts.options.spec import ALL_METHODS, KINDS, Option, OptionGroup
from sd_scripts.settings.catalog import FAMILY_TITLES, METHOD_TITLES, SCRIPTS
from sd_scripts.settings.compat.musubi import DECIDED_BY, MusubiOptions
from sd_scripts.settings.family_options import each_option

TOPICS: Mapping[str, tuple[tuple[type, ...], tuple[str, ...]]] = {
    "memory": (
        (MemoryOptions, FusedOptions, CacheOptions),
        (
            *("resolution", "train_batch_size", "gradient_checkpointing", "cpu_offload_checkpointing", "lowram"),
            *(
                "mixed_precision",
                "full_bf16",
                "full_fp16",
                "fp8_base",
                "fp8_base_unet",
                "optimizer_type",
                "network_dim",
            ),
            *("vae_batch_size", "no_half_vae", "max_data_loader_n_workers", "network_train_unet_only"),
        ),
    ),
    "quality": (
        (LossOptions, NoiseOptions, FlowOptions, EmaOptions, CaptionOptions, AugmentOptions, LrSchedulerOptions),
        (
            *("resolution", "train_batch_size", "learning_rate", "unet_lr", "text_encoder_lr", "max_train_steps"),
            *("max_train_epochs", "num_repeats", "network_dim", "network_alpha", "network_dropout", "network_type"),
            *("optimizer_type", "max_grad_norm", "reg_data_dir", "save_precision", "clip_skip"),
        ),
    ),
}
"""Filter of the search -> groups and further options that decide about it."""


class SettingsIndex:
    """The index as JSON, made once when the page is built; browsers ask whether theirs is current."""

    def __init__(self) -> None:
        self._content: dict[str, Any] = {}
        self._answer: Unchanging | None = None

    def fill(self, forms: Iterable[tuple[Tab, Form]]) -> None:
        self._content = settings_index(forms)
        self._answer = None

    def routes(self) -> list[Route]:
        """Return the route, for `launch(app_kwargs={"routes": ...})`."""
        return [get("settings", self._send)]

    def _send(self, request: Request) -> Response:
        self._answer = self._answer or Unchanging(self._content)
        return self._answer.send(request)


def settings_index(forms: Iterable[tuple[Tab, Form]]) -> dict[str, Any]:
    """Return every setting once, and the sections of each training tab with the names of theirs."""
    tabs: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    aliases = _aliases()
    for tab, form in forms:
        tabs[tab.name] = {"title": tab.title, "method": tab.method, "sections": form.sections()}
        for name in form.controls:
            entry = settings.setdefault(name, {**_entry(form, form.options[name]), "aliases": aliases.get(name, [])})
            entry["kohya"] = list(dict.fromkeys([*entry["kohya"], *kohya_names(tab.name, name)]))
    return {"families": FAMILY_TITLES, "methods": METHOD_TITLES, "tabs": tabs, "settings": settings, **_others()}


def _aliases() -> dict[str, list[str]]:
    """Return the names in musubi-tuner and in other trainers of each option that has some, its own name aside."""
    found: dict[str, dict[str, None]] = {}
    for table in (DECIDED_BY, *(card.aliases for card in cards())):
        for alias, name in table.items():
            found.setdefault(name, {})[alias] = None
    return {name: list(names) for name, names in found.items()}


def _others() -> dict[str, Any]:
    """Return the options of sd-scripts and musubi-tuner that have no control, each with the reason."""
    every: list[type[OptionGroup]] = [MusubiOptions, *(group for script in SCRIPTS for group in script.groups)]
    groups = dict.fromkeys(every)
    return {"without_effect": {o.name: o.not_yet for group in groups for o in each_option(group) if o.not_yet}}


def contents(title: str, sections: Sequence[Mapping[str, Any]]) -> str:
    """Return the list of a form's sections, which search.js leads to; Tab stops at one of them."""
    rows = []
    group = ""
    for section in sections:
        if section["group"] not in ("", group):
            rows.append(f'<li class="group">{escape(section["group"])}</li>')
        group = section["group"]
        rows.append(_link(section, tab_stop=section is sections[0]))
    return f'<nav class="contents" aria-label="Sections of {escape(title)}"><ul>{"".join(rows)}</ul></nav>'


def _link(section: Mapping[str, Any], *, tab_stop: bool) -> str:
    inner = ' class="inner"' if section["group"] else ""
    data = {"section": section["id"], "panels": " ".join(section["panels"]), "names": " ".join(section["names"])}
    attributes = " ".join(f'data-{name}="{value}"' for name, value in data.items())
    button = (
        f'<button type="button" tabindex="{0 if tab_stop else -1}" {attributes}>{escape(section["title"])}</button>'
    )
    return f'<li id="{section["id"]}-link"{inner}>{button}</li>'


def _entry(form: Form, option: Option) -> dict[str, Any]:
    parts = [(None, option.help), *option.family_notes]
    optional: dict[str, Any] = {
        "notes": {method: labelled(text, form.options) for method, text in option.notes.items()},
        "choices": list(option.suggestions or option.choices),
        "unset": UNSET[0] if option.nullable else "",
        "lines": option.many and option.type is str,
        "within": option.within if kind(option) == "slider" else None,
        "methods": option.methods if option.methods != ALL_METHODS else (),
        "defaults": {family: shown(option, default) for family, default in option.family_defaults.items()},
    }
    return {
        "label": option.label.removesuffix(f" ({option.name})"),
        "kohya": [],
        "help": [(families, labelled(text, form.options)) for families, text in parts],
        "kind": kind(option),
        "type": _type(option),
        "default": shown(option, option.default),
        "topics": topics(form.group_of[option.name], option.name),
        **{name: value for name, value in optional.items() if value},
    }


def topics(group: type, name: str) -> list[str]:
    """Return the filters of the search that an option belongs to."""
    return [topic for topic, (groups, names) in TOPICS.items() if group in groups or name in names]


def _type(option: Option) -> str:
    """Describe the valid values: "a whole number · 1 to 1000"."""
    if option.choices and not option.many:
        return "one of a list" if not option.more_choices else "a name"
    word = ("texts, one per line" if option.type is str else "numbers") if option.many else KINDS[option.type]
    return f"{word} · {option.within[0]} to {option.within[1]}" if option.within else word
