"""Measure from the page what torch.compile is worth: routes under /studio that start measure_compile and follow it."""

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.configuration import leaked_secrets
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.runs.run_view import progress_bar, ticking
from kohya_gui.server.json_routes import get, post
from kohya_gui.server.messages import message
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.formats.words import duration
from sd_scripts.machine.measurements import RESULT
from sd_scripts.options.compile import CompileOptions
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.watched import WatchedRun
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Settings

TOOL = "sd_scripts.tools.measure_compile"
GIB = 2**30
SETTINGS = "settings.toml"
SHOWN_SETTINGS = {"resolution": "resolution", "train_batch_size": "batch size", "network_dim": "rank"}
"""Settings that stand above a result, by their words there."""
SET_BY_VARIANTS = (
    *(o.name for o in each_option(CompileOptions)),
    *("gradient_checkpointing", "activation_memory_budget"),
)
"""Options that Use this sets; those that a variant does not name get their defaults."""
SET_BY_SOME = ("blocks_to_swap",)
"""Options that Use this sets only if the variant names them."""


class MeasureJob(ToolJob):
    """The single measuring job of this GUI."""

    name = "measure"
    busy_sentence = "A measurement is already running: stop it or wait for it to finish"

    @property
    def tab(self) -> str:
        """The tab in which the current or last job was started."""
        return str(self.record.get("tab") or "")

    def start(self, settings: Settings, tab: str, links: FieldLinks = NO_LINKS) -> None:
        """Start now, or when the run on the GPU ends. Raises ValueError, one sentence per line."""
        self.check_idle()
        if problems := [*map(str, preflight.problems(settings)), *leaked_secrets(settings)]:
            raise links.refusal(problems)

        def prepare(job: WatchedRun) -> Sequence[str]:
            config = job.folder.path / SETTINGS
            try:
                write_toml(config, settings.saved())
            except OSError as error:
                raise ValueError(f"{config} cannot be written ({error.strerror})") from error
            return ["--config_file", str(config)]

        self.begin([sys.executable, "-m", TOOL], prepare, record={"tab": tab})

    @property
    def about(self) -> str:
        """The settings that the current or last job measures, in a few words; the form may have others by now."""
        try:
            values = read_toml(self.watched.folder.path / SETTINGS) if self.watched else {}
        except (OSError, ValueError):
            return ""
        named = [str(values.get("output_name") or ""), FAMILY_TITLES.get(str(values.get("family")), "")]
        named += [f"{label} {values[name]}" for name, label in SHOWN_SETTINGS.items() if name in values]
        return ", ".join(filter(None, named))


def routes(
    queue: RunQueue, allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks] = MappingProxyType({})
) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""
    job = MeasureJob(queue)

    def state(request: Request) -> dict[str, Any] | None:
        """Return the HTML of the job if it changed, and whether the page must ask again."""
        if job.watched is None:
            return {"known": job.version, "tab": "", "html": "", "over": True}
        run_state = job.watched.refresh()
        known = job.version
        if request.query_params.get("known") == known:
            return None
        of_tab = links.get(job.tab, NO_LINKS)
        shown = view(run_state, job.result(RESULT), job.waits_for, job.about, of_tab)
        return {"known": known, "tab": job.tab, "html": shown, "over": run_state.over}

    def start(request: Request, body: Mapping[str, Any]) -> None:
        settings, tab = settings_of(body), str(body["tab"])
        of_tab = links.get(tab, NO_LINKS)
        if problems := allowed_paths.problems_of(settings):
            raise of_tab.refusal(problems[:1])
        job.start(settings, tab, of_tab)

    return [
        get("measure", state),
        post("measure", start),
        post("measure/stop", lambda request, body: job.stop()),
    ]


def view(
    run_state: RunState,
    result: Mapping[str, Any] | None,
    waits_for: str,
    about: str = "",
    links: FieldLinks = NO_LINKS,
) -> str:
    """Return the job as HTML: the run it waits for, its progress, or its outcome; `about`: what it measures; `links`:
    to the fields of its tab."""
    stop = '<button type="button" class="quiet-button" data-measure="stop">Stop measuring</button>'
    if waits_for:
        return (
            message("note", f"Measuring starts when {waits_for} ends, before queued runs, if the GUI runs then") + stop
        )
    if run_state.state == "finished" and result:
        return table(result, about)
    if run_state.state == "stopped":
        return message("warning", "Measuring was stopped. Variants that were finished are remembered")
    if run_state.over:
        return message("error", links.sentence(run_state.failure.get("error", "Measuring ended without a result")))
    doing = "starting" if run_state.state == "starting" else run_state.doing
    fraction = run_state.done / run_state.total if run_state.total else None
    steps = [f"step {run_state.done} of {run_state.total}"] if run_state.total else []
    note = [run_state.phase_note] if run_state.phase_note else []
    since = run_state.phase_since or run_state.started  # a graph may compile for minutes
    ticks = f' · <span class="ticks" {ticking(since)}></span>' if since else ""
    return f'<div class="run measuring">{progress_bar(fraction, " · ".join([doing, *steps, *note]), ticks)}</div>{stop}'


COLUMNS = ("Step", "First step", "Memory", "This run", "")
"""Of the measured variants, after the first."""


def table(result: Mapping[str, Any], about: str = "") -> str:
    """Return the measured variants with a bar for each, the best first to be chosen."""
    rows = result["rows"]
    slowest = max((_median(row) for row in rows), default=0.0) or 1.0
    shown = "".join(_row(row, slowest, row["variant"] == result["best"]) for row in rows)
    head = "".join(f"<th>{words}</th>" for words in ("Variant", *COLUMNS))
    caption = f"<caption>Measured with {escape(about)}</caption>" if about else ""
    return f'<div class="measured"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table></div>'


def _row(row: Mapping[str, Any], slowest: float, best: bool) -> str:
    name = escape(row["variant"])
    if row["failed"]:
        return f'<tr><th scope="row">{name}</th><td class="warn" colspan="5">{escape(row["failed"])}</td></tr>'
    milliseconds, width = _median(row) * 1000, 100 * _median(row) / slowest
    step = f'<span class="bar"><i style="width:{width:.0f}%"></i></span>{milliseconds:.0f} ms'
    first = [duration(row["first"])]
    if row["first_warm"] is not None:
        first.append(f"{duration(row['first_warm'])} with cache")
    memory = f"{row['gpu_bytes'] / GIB:.1f} GiB" if row["gpu_bytes"] else ""
    total = "" if row["total"] is None else duration(row["total"])
    use = f"<button type=\"button\" data-load='options:{escape(json.dumps(row['options']))}'>Use this</button>"
    values = (step, " · ".join(first), memory, total + (" (fastest)" if best else ""), use)
    # a narrow window has no head: each value follows its label
    cells = "".join(f'<td data-label="{label}">{value}</td>' for label, value in zip(COLUMNS, values, strict=True))
    mark = ' class="best"' if best else ""
    return f'<tr{mark}><th scope="row">{name}</th>{cells}</tr>'


def _median(row: Mapping[str, Any]) -> float:
    seconds = row["seconds"].values()
    return sum(seconds) / len(seconds) if seconds else 0.0
