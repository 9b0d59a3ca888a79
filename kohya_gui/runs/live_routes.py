"""HTTP routes under /studio for live runs: small JSON in and out, stateless.

The page polls them; 204 means nothing changed. Access is checked before them (auth.py).
"""

import os
import secrets
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.runs.before_after import changed
from kohya_gui.runs.past_runs import continued, differences, tab_of
from kohya_gui.runs.run_view import STATE_LABELS, newest_state, sections, shown_state, state_label
from kohya_gui.server.json_routes import ID, NotFound, allowed_file, get, post, row_of
from kohya_gui.server.media_files import send_file, send_media
from kohya_gui.tabs import TABS
from sd_scripts.formats.images.generated_files import GENERATED_TYPES
from sd_scripts.formats.regular_files import open_regular
from sd_scripts.runs.events import Command, read_event
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.joined import JoinedCurves, predecessors
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import ENDED, LIVING, RunState
from sd_scripts.runs.series import Series
from sd_scripts.runs.store import RunRow
from sd_scripts.settings.catalog import FAMILY_TITLES

MOST_BINS = 1000
"""Bins of a loss curve in one response; the page fetches finer ones when it zooms in."""
MOST_RATES = 250
"""Points of a learning rate in one response: a smooth line needs no more."""
MOST_RUNS = 1000
MOST_NAME, MOST_NOTE = 200, 4000
"""Characters."""
MOST_LINES = 2000
TAIL_BYTES = 65_536
"""Bytes read from the end of a finished run's event log when only its final values are needed."""
MOVES = ("up", "down", "first", "last")
ROW_FIELDS = ("id", "name", "note", "tab", "family", "gpus", "place", "created", "started")
"""Columns of a run's row that the board shows unchanged."""
SAMPLE_FIELDS = ("number", "step", "seed", "media", "width", "height", "frames", "fps")


def routes(
    queue: RunQueue, allowed_paths: AllowedPaths = EVERYWHERE, links: Mapping[str, FieldLinks] = MappingProxyType({})
) -> list[Route]:
    """Return all routes of a queue, for `launch(app_kwargs={"routes": ...})`; `links` to the fields, by tab."""
    live = LiveRoutes(queue, allowed_paths, links)
    return [
        get("board", live.board),
        get("compare", live.compare),
        get("run/{id:row}", live.run),
        get("run/{id:row}/curves", live.curves),
        get("run/{id:row}/console", live.console),
        get("run/{id:row}/sample/{number:row}", live.sample),
        get("run/{id:row}/file/{number:row}", live.file),
        post("queue", live.set_queue),
        post("runs/forget", live.forget),
        post("run/{id:row}/{action}", live.act),
    ]


class LiveRoutes:
    """The handlers, which answer from the current state of the queue."""

    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths, links: Mapping[str, FieldLinks]) -> None:
        self._queue, self._allowed_paths, self._links = queue, allowed_paths, links
        self._launch = secrets.token_hex(4)
        """Lets the page notice a restart of the GUI."""
        self._before: dict[tuple[int, str], list[int]] = {}
        """(Run, state it resumed from) -> the runs before it, oldest first."""
        self._joined: dict[int, tuple[list[int], JoinedCurves]] = {}

    def board(self, request: Request) -> Any:
        """Return a summary of every run, newest first."""
        version = f"{self._launch}.{self._queue.store.version}"
        if request.query_params.get("known") == version:
            return None
        limit = min(_int(request, "limit", 200), MOST_RUNS)
        return {
            "version": version,
            "launch": self._launch,
            "paused": self._queue.store.paused,
            "notice": self._queue.store.pause_reason or self._queue.store.notice,
            "after_failure": self._queue.store.after_failure,
            "runs": [self._summary(row) for row in self._shown_rows(limit)],
        }

    def run(self, request: Request) -> Any:
        """Return a run as HTML by section if it changed, with its samples unless the page has them."""
        row = self._row(request)
        run_state = self._queue.watch(row.id).refresh()
        words = f"{row.name}.{row.note}.{row.error}"
        events = f"{run_state.event_count}.{changed(row)}"
        known = f"{self._launch}.{events}.{row.state}.{row.place}.{row.started}.{row.ended}.{words}"
        if request.query_params.get("known") == known:
            return None
        state = shown_state(run_state, row)
        samples = _samples(row.id, run_state)
        return {
            "id": row.id,
            "name": row.name,
            "note": row.note,
            "tab": tab_of(row).name,
            "known": known,
            "now": time.time(),
            "state": state,
            "word": state_label(run_state, row),
            "over": state in ENDED,
            "sections": sections(run_state, row, links=self._links_of(row)),
            "curves": len(run_state.losses) + len(run_state.validation),
            "before": len(self._predecessors(row, run_state)),
            **({"samples": samples} if _int(request, "samples", -1) != len(samples) else {}),
        }

    def curves(self, request: Request) -> Any:
        """Return the loss in bins, as fine as fits: from bin `after` on, or for the steps first..last.

        `joined` includes the runs that this one continues. `marks` is how many marks of the compiler the page has; they
        are sent if there are others.
        """
        row = self._row(request)
        run_state = self._queue.watch(row.id).refresh()
        curves = self._joined_curves(row, run_state) if request.query_params.get("joined") else run_state
        first, last = _float(request, "first"), _float(request, "last")
        level = _int(request, "level", curves.losses.level(MOST_BINS, first, last))
        bins = curves.losses.bins(min(level, 40), _int(request, "after", 0), first, last)
        return {
            "level": bins.level,
            "start": bins.start,
            "bins": [[_rounded(value) for value in each] for each in bins.bins],
            "validation": _thinned(curves.validation, first, last),
            "rates": {name: _thinned(rate, first, last) for name, rate in curves.rates.items()},
            "seconds": _thinned(curves.seconds, first, last),
            "gpu": {name: _thinned(readings, first, last) for name, readings in curves.gpu.items()},
            "max_steps": run_state.max_steps,
            **({"marks": _marks(run_state)} if _int(request, "marks", -1) != len(run_state.marks) else {}),
        }

    def console(self, request: Request) -> Any:
        """Return the last lines of the run's console, or all that contain `find`."""
        folder = RunFolder(self._row(request).folder)
        find = request.query_params.get("find", "")[:200]
        known = f"{folder.console.stat().st_size if folder.console.exists() else 0}.{find}"
        if request.query_params.get("known") == known:
            return None
        lines, total = folder.console_lines(find, min(_int(request, "lines", 400), MOST_LINES))
        return {"known": known, "lines": lines, "total": total}

    def sample(self, request: Request) -> Response:
        """Return a sample of the run, an image or a clip."""
        return send_media(request, self._file_of(request, "samples"))

    def file(self, request: Request) -> Response:
        """Return a model that the run saved, as a download."""
        return send_file(request, self._file_of(request, "saved"), "application/octet-stream", download=True)

    def compare(self, request: Request) -> Any:
        """Return the settings in which some runs differ."""
        words = request.query_params.get("ids", "").split(",")[:MOST_RUNS]
        ids = [int(word) for word in words if ID.fullmatch(word)]
        rows = [row for id in dict.fromkeys(ids) if (row := self._queue.store.row(id))]
        if len(rows) < 2:
            raise ValueError("Choose at least two runs to compare")
        return {"runs": [self._compared(row) for row in rows], "settings": differences(rows)}

    def _compared(self, row: RunRow) -> dict[str, Any]:
        run_state = self._queue.watch(row.id).refresh()
        return {
            "id": row.id,
            "name": row.name,
            "state": row.state,
            "started": row.started or row.created,
            "before": len(self._predecessors(row, run_state)),
            "samples": _samples(row.id, run_state),
        }

    def act(self, request: Request, body: Mapping[str, Any]) -> Any:
        """Perform an action on a run. Raises ValueError if it cannot be done."""
        action = request.path_params["action"]
        if action == "put_back":  # the run is not in the list
            self._queue.put_back(request.path_params["id"])
            return {"ok": True}
        row = self._row(request)
        simple = {"end": self._queue.end_now, "remove": self._queue.remove, "forget": self._queue.forget}
        if action in get_args(Command):
            self._queue.ask(row.id, action)
        elif action in MOVES:
            self._queue.move(row.id, action)
        elif action in simple:
            simple[action](row.id)
        elif action == "describe":
            name = _text(body, "name", MOST_NAME).replace("\n", " ") or row.name
            self._queue.describe(row.id, name, _text(body, "note", MOST_NOTE))
        elif action == "continue":
            run_state = self._queue.watch(row.id).refresh()
            return {"ok": True, "id": self._queue.add(continued(row, newest_state(run_state), self._allowed_paths))}
        else:
            raise NotFound(f"Unknown action: {action}")
        return {"ok": True}

    def forget(self, request: Request, body: Mapping[str, Any]) -> Any:
        """Remove several finished runs from the list; their folders stay."""
        ids = body.get("ids")
        if not isinstance(ids, list) or not all(type(id) is int for id in ids):
            raise ValueError("ids: must be a list of run numbers")
        rows = [row for id in dict.fromkeys(ids) if (row := self._queue.store.row(id)) and row.state in ENDED]
        for row in rows:
            self._queue.forget(row.id)
        return {"ok": True, "removed": len(rows)}

    def set_queue(self, request: Request, body: Mapping[str, Any]) -> Any:
        """Pause the queue, or set whether it continues after a failed run."""
        for name in ("paused", "after_failure"):
            if isinstance(body.get(name), bool):
                setattr(self._queue.store, name, body[name])
        return {"ok": True}

    def _shown_rows(self, limit: int) -> list[RunRow]:
        """Return the newest runs, plus all that are queued or active, and the newest of each tab, which it shows."""
        store = self._queue.store
        found = (*store.queued(), *store.living(), *store.newest_of_tabs(), *store.rows(limit))
        every = {row.id: row for row in found}
        return [every[id] for id in sorted(every, reverse=True)]

    def _predecessors(self, row: RunRow, run_state: RunState) -> list[int]:
        """Return the runs that this one continues, oldest first; cached."""
        state = run_state.facts.get("resumed_from")
        if not state:
            return []
        key = row.id, str(state)
        if key not in self._before:
            rows = self._queue.store.rows(MOST_RUNS)
            self._before[key] = predecessors(row, run_state, rows, lambda id: self._queue.watch(id).refresh())
        return self._before[key]

    def _joined_curves(self, row: RunRow, run_state: RunState) -> JoinedCurves:
        before = [id for id in self._predecessors(row, run_state) if self._queue.store.row(id)]
        kept = self._joined.get(row.id)
        if kept is None or kept[0] != before:
            states = [self._queue.watch(id).refresh() for id in before]
            kept = before, JoinedCurves(states)
            self._joined = {**dict(list(self._joined.items())[-3:]), row.id: kept}  # each has all its points
        kept[1].extend(run_state)
        return kept[1]

    def _links_of(self, row: RunRow) -> FieldLinks:
        return self._links.get(tab_of(row).name, NO_LINKS)

    def _row(self, request: Request) -> RunRow:
        return row_of(request, self._queue)

    def _summary(self, row: RunRow) -> dict[str, Any]:
        run_state = self._queue.watch(row.id).refresh() if row.state in LIVING else None
        now = run_state or row
        loss, can_continue = _final_loss(row.folder, row.state, row.ended) if row.state in ENDED else (None, False)
        return {
            **{name: getattr(row, name) for name in ROW_FIELDS},
            "error": self._links_of(row).words(row.error),
            "tab_title": TABS[row.tab].title if row.tab in TABS else row.tab,
            "family_title": FAMILY_TITLES.get(row.family, row.family),
            "state": now.state,
            "word": state_label(run_state, row) if run_state else STATE_LABELS[row.state],
            "ended": row.ended or (run_state.ended if run_state else row.started or row.created),
            "step": now.step,
            "max_steps": now.max_steps,
            "fraction": run_state.fraction if run_state else 0.0,
            "phase": run_state.phase if run_state else "",
            "seconds_left": run_state.seconds_left if run_state else None,
            "loss": _rounded(run_state.average) if run_state else loss,
            "result": Path(row.results[-1]).name if row.results else "",
            "folder": str(row.folder),
            "can_continue": can_continue,
        }

    def _file_of(self, request: Request, kind: str) -> Path:
        """Return a file by its number among those the run reported."""
        row, number = self._row(request), request.path_params["number"]
        made = getattr(self._queue.watch(row.id).refresh(), kind)
        if number >= len(made):
            raise NotFound("This run has no such file")
        path = made[number].find() if kind == "saved" else made[number].path
        if path is None:
            raise NotFound(f"{made[number].path.name} of this run was overwritten by a later run")
        return allowed_file(self._allowed_paths, "file", path)


def _samples(run: int, run_state: RunState) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(made, name) for name in SAMPLE_FIELDS},
            "ending": made.path.suffix if made.path.suffix.lower() in GENERATED_TYPES else "",
            "prompt": made.note,
            "url": f"studio/run/{run}/sample/{index}",
        }
        for index, made in enumerate(run_state.samples)
    ]


def _marks(run_state: RunState) -> list[dict[str, Any]]:
    return [{"step": mark.step, "kind": mark.kind, "lines": mark.lines} for mark in run_state.marks]


@lru_cache(maxsize=4096)
def _final_loss(folder: Path, state: str, ended: float | None) -> tuple[float | None, bool]:
    """Return the last loss of a finished run and whether it can be continued, from the end of its event log."""
    run_state = RunState()
    try:
        with open_regular(folder / "events.jsonl") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()[1 if size > TAIL_BYTES else 0 :]
    except OSError:
        return None, False
    for line in lines:
        event = read_event(line)
        if event is not None and event.get("kind") in ("step", "saved"):
            run_state.apply(event)
    loss = run_state.average if run_state.average is not None else run_state.loss
    return _rounded(loss), newest_state(run_state) is not None


def _text(body: Mapping[str, Any], name: str, most: int) -> str:
    """Return user text as lines without control characters."""
    text = body.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name}: must be a string")
    if len(text) > most:
        raise ValueError(f"{name}: longer than {most} characters")
    lines = text.replace("\t", " ").splitlines()
    return "\n".join("".join(filter(str.isprintable, line)).rstrip() for line in lines).strip()


def _int(request: Request, name: str, default: int) -> int:
    value = request.query_params.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 12 else default


def _float(request: Request, name: str) -> float | None:
    try:
        value = float(request.query_params[name])
    except (KeyError, ValueError):
        return None
    return value if abs(value) < 1e12 else None  # not inf, not NaN


def _rounded(value: float | None) -> float | None:
    """Round to six digits, more than a chart shows."""
    if value is None or value != value or abs(value) == float("inf"):
        return None
    return float(f"{value:.6g}") if abs(value) < 1e6 else value


def _thinned(series: Series, first: float | None, last: float | None) -> list[list[float | None]]:
    level = series.level(MOST_RATES, first, last)
    return [[_rounded(step), _rounded(mean)] for step, _, _, mean in series.bins(level, 0, first, last).bins]
