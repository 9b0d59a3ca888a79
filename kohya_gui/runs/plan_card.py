"""The plan of a run, next to Start: what the training script will do with the settings of the form."""

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.configuration import families_of, of_family
from kohya_gui.form.controls import given
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.runs.plan_process import PlanProcess
from kohya_gui.server.json_routes import post
from kohya_gui.server.messages import Html
from kohya_gui.server.messages import html as as_html
from kohya_gui.tabs import TABS
from sd_scripts.machine.measurements import measurements_file
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

logger = logging.getLogger("sd_scripts")

REMEMBERED = 64
"""Plans that are kept, so that going back and forth in the form costs nothing."""
DATA = ("train_data_dir", "reg_data_dir", "conditioning_data_dir", "control_directory", "in_json", "dataset_config")
"""Options whose files and folders the plan depends on."""
LISTED = 24
"""Cropped images shown on the card."""
NOTICEABLE = 0.01
"""Share of its area that an image must lose to be listed."""
MEASURE = "Measure on this machine"
MEASURE_HINT = "Train a few steps with these settings, eager and compiled, and compare the speeds"
NO_INTERVAL, EVERY_EPOCH = "sample_prompts: generates no samples on its own", "Sample every epoch"
FAULT = "No plan: it could not be made. See the console of the GUI."
TOO_LONG = "No plan: reading the sizes of the images takes too long. Training can start all the same."
NO_DATA = "Choose the training images to see steps, buckets and, with torch.compile, graphs."


def routes(allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks], process: PlanProcess) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""
    return [post("plan", PlanCards(allowed_paths, process, links).card)]


class PlanCards:
    """Makes the cards, and remembers them."""

    def __init__(
        self, allowed_paths: AllowedPaths, process: PlanProcess, links: Mapping[str, FieldLinks] = MappingProxyType({})
    ) -> None:
        self._allowed_paths, self._process, self._links = allowed_paths, process, links
        self._made: OrderedDict[str, str] = OrderedDict()
        self._one_at_a_time = threading.Lock()

    def card(self, request: Request, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTML of the card for a form's draft."""
        self._process.start()
        settings, links = settings_of(body), self._links.get(str(body["tab"]), NO_LINKS)
        if not any(settings.values().get(name) for name in DATA):
            return {"html": empty(NO_DATA)}
        if problems := self._allowed_paths.problems_of(settings):
            return {"html": empty(links.sentence(problems[0]))}
        if wrong := settings.wrong_values():
            return {"html": empty(Html(f"No plan yet: {links.sentence(wrong[0])}"))}
        with self._one_at_a_time:
            saved = settings.saved()
            key = f"{body['tab']} {settings.script.file} {_key(saved)}"  # the card leads to fields of the tab
            if key in self._made:
                return {"html": self._made[key]}
            try:
                plan = self._process.ask(saved)
            except TimeoutError:
                return {"html": empty(TOO_LONG)}
            except (EOFError, OSError):
                return {"html": empty(FAULT)}
            if details := plan.get("fault"):
                logger.error("The plan could not be made:\n%s", details)
                return {"html": empty(FAULT)}
            refused = [Html(f"No plan yet: {links.sentence(why)}") for why in plan.get("refused", ())[:1]]
            html = empty(*refused) if refused else filled(plan, links, [str(each) for each in settings.remarks])
            self._made[key] = html
            while len(self._made) > REMEMBERED:
                self._made.popitem(last=False)
            return {"html": html}


def _key(saved: Mapping[str, Any]) -> str:
    """Return the inputs of the plan: the settings, and when the data and the measurements last changed."""
    places = [Path(os.path.expanduser(str(path))) for name in DATA if (path := saved.get(name))]
    places += [inner for place in places if place.is_dir() for inner in place.iterdir() if inner.is_dir()]
    times = [_changed(place) for place in (*sorted(places), measurements_file())]
    return json.dumps([saved, times], default=str)


def settings_of(body: Mapping[str, Any]) -> Settings:
    """Return the settings of the form that a request describes. Raises ValueError if it describes none."""
    tab, family, values = TABS.get(str(body.get("tab"))), body.get("family"), body.get("values")
    if tab is None or family not in families_of(tab.method) or not isinstance(values, dict):
        raise ValueError("The request does not name a tab, a model family and the values of a form")
    script = script_for(str(family), tab.method)
    options = {o.name: o for group in script.groups for o in each_option(group)}
    known = {name: given(options[name], value) for name, value in values.items() if name in options}
    return from_values(script, of_family(known, script))


def empty(why: str) -> str:
    return f'<p class="plan plan-empty">{as_html(why)}</p>'


def filled(plan: Mapping[str, Any], links: FieldLinks = NO_LINKS, remarks: Sequence[str] = ()) -> str:
    """Return the card of a plan that was made; `remarks` on the settings stand below it."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in plan["rows"])
    bar = memory_bar(plan["memory_parts"], plan["memory"]) if plan["memory"] else ""
    notes = dict.fromkeys([*((plan["compile"] or {}).get("advice") or ()), *plan["warnings"], *remarks])
    told = "".join(f"<li>{links.sentence(note)}{_mend(note, links)}</li>" for note in notes)
    below = f"<ul>{told}</ul>" if notes else ""
    summary = f'<summary data-name="plan"><b>Plan</b> <span>{escape(plan["headline"])}</span></summary>'
    measure = (
        f'<p class="ways"><button type="button" data-measure="start" title="{MEASURE_HINT}">{MEASURE}</button></p>'
    )
    return f'<details class="plan">{summary}<dl>{rows}</dl>{bar}{cropped(plan)}{below}{measure}</details>'


def _mend(note: str, links: FieldLinks) -> str:
    """Return a button that applies a note's advice; empty if a button is not enough."""
    return links.set_button("sample_every_n_epochs", "1", EVERY_EPOCH) if note.startswith(NO_INTERVAL) else ""


def memory_bar(parts: Sequence[tuple[str, int]], memory: Mapping[str, Any]) -> str:
    """Return the parts of the GPU's memory side by side, on a scale that ends with the GPU's size or after it."""
    size, used = int(memory["card"]), int(memory["in_use"])
    scale = max(size, used)
    shown = [(name, bytes) for name, bytes in parts if bytes > 0]
    spans = "".join(
        f'<span style="width:{100 * bytes / scale:.2f}%" data-part="{number}" title="{_part(name, bytes)}"></span>'
        for number, (name, bytes) in enumerate(shown)
    )
    legend = "".join(
        f'<li data-part="{number}">{_part(name, bytes)}</li>' for number, (name, bytes) in enumerate(shown)
    )
    mark = f'<i style="left:{100 * size / scale:.2f}%" title="{_gib(size)} on this GPU"></i>' if size else ""
    words = f"GPU memory: {_gib(used)} of {_gib(size)}" if size else f"GPU memory: {_gib(used)}"
    over = " over" if size and used > size else ""
    return f'<div class="memory{over}" role="img" aria-label="{words}"><div>{spans}{mark}</div><ul>{legend}</ul></div>'


def _part(name: str, bytes: int) -> str:
    return escape(f"{name} {_gib(bytes)}")


def _gib(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB"


def cropped(plan: Mapping[str, Any]) -> str:
    """Return the images that lose most to equal_token_buckets, folded up; empty without it."""
    images = [image for image in plan["crops"]["images"] if image["cropped"] >= NOTICEABLE]
    if not images or not plan["crops"]["ordinary"]:
        return ""
    rows = "".join(map(_cropped_image, images[:LISTED]))
    more = f" (the first {LISTED})" if len(images) > LISTED else ""
    return f"<details><summary>Images cropped most{more}</summary><dl>{rows}</dl></details>"


def _cropped_image(image: Mapping[str, Any]) -> str:
    lost = f"{image['size']} in {image['bucket']}: {100 * image['cropped']:.1f} % cropped"
    return f"<dt>{escape(image['file'])}</dt><dd>{lost}</dd>"


def _changed(place: Path) -> int:
    try:
        return place.stat().st_mtime_ns
    except OSError:
        return 0
