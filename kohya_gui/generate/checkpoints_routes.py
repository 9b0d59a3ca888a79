"""Compare the checkpoints of a run from its view: routes under /studio that start compare_checkpoints, follow it, and
show its result, which is in the run folder."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.generate.generate_routes import as_form
from kohya_gui.runs.past_runs import tab_of
from kohya_gui.server.json_routes import NotFound, allowed_file, get, post, row_of
from kohya_gui.server.media_files import send_media
from kohya_gui.tools.lora_tools import flags_of
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.formats.images.generated_files import GENERATED_TYPES, read_generated
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.generating.compare_checkpoints import COMPARE_GROUPS
from sd_scripts.options.spec import Option
from sd_scripts.runs.comparison import (
    FOLDER,
    GRID,
    GRID_CLIP,
    RESULT,
    RULES,
    WITHIN,
    Rule,
    best,
    checkpoints_of,
    read_comparison,
)
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.store import RunRow
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.tools.lora_tools import defaults, option_problems

TOOL = "sd_scripts.tools.compare_checkpoints"
OPTIONS: dict[str, Option] = {o.name: o for group in COMPARE_GROUPS for o in each_option(group)}
FORM = (
    *("checkpoints", "strengths", "prompt", "seeds", "width", "height", "frames", "fps", "steps", "scale"),
    *(
        "guidance",
        "sampler",
        "negative_prompt",
        "no_images",
        "validation_dir",
        "no_validation",
        "rule",
        "within",
        "dtype",
        "compile",
    ),
)
"""Options that the page sets from its form."""
LINKS = FieldLinks("compare", OPTIONS, FORM)


class CompareJob(ToolJob):
    """The single comparing job of this GUI; its record has the `run` whose checkpoints it compares."""

    name = "compare-checkpoints"
    busy_sentence = "Checkpoints are already being compared: stop that, or wait for it to finish"


class CheckpointsRoutes:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._job = CompareJob(queue)

    def form(self, request: Request) -> dict[str, Any]:
        """Return the choices in the form of a run."""
        row = row_of(request, self._queue)
        state = self._queue.watch(row.id).refresh()
        values = _settings(row)
        offered = {name: OPTIONS[name] for name in FORM if row.family in OPTIONS[name].families}
        checkpoints = checkpoints_of(state)
        if not checkpoints:
            raise ValueError(f"{row.name}: the files that it saved no longer exist")
        return {
            "checkpoints": [
                {"file": str(checkpoint.path), "name": checkpoint.name, "label": checkpoint.label}
                for checkpoint in checkpoints
            ],
            "adapters": tab_of(row).method == "lora",
            "held_out": bool(values.get("validation_split") or values.get("dataset_config")),
            "sampled": _has_prompts(values, state),
            "rules": [{"value": rule, "title": title} for rule, title in RULES.items()],
            "within": WITHIN,
            "fields": {
                name: {"label": o.label, "help": o.help, "choices": list(o.choices)} for name, o in offered.items()
            },
        }

    def start(self, request: Request, body: Mapping[str, Any]) -> None:
        """Check a form and start the job. Raises ValueError, one sentence per line."""
        row = row_of(request, self._queue)
        values = defaults(COMPARE_GROUPS)
        values |= {name: OPTIONS[name].read(value) for name, value in body.items() if name in FORM}
        if problems := option_problems(COMPARE_GROUPS, values) or self._problems(row, values):
            raise LINKS.refusal(problems)
        folder = self._allowed_paths.check("run", row.folder)
        flags = flags_of(list(OPTIONS.values()), values)
        self._job.begin([sys.executable, "-m", TOOL, str(folder), *flags], record={"run": row.id})

    def _problems(self, row: RunRow, values: Mapping[str, Any]) -> list[str]:
        state = self._queue.watch(row.id).refresh()
        files = {str(checkpoint.path) for checkpoint in checkpoints_of(state)}
        others = [file for file in values["checkpoints"] if file not in files]
        problems = [f"checkpoints: '{file}' is not a file of this run; leave it out" for file in others]
        if not values["checkpoints"]:
            problems.append("checkpoints: none is chosen; tick at least one")
        if not values["prompt"] and not values["no_images"] and not _has_prompts(_settings(row), state):
            problems.append("prompt: not set, and the run made no samples; write a prompt, or tick Losses only")
        for line in (*values["prompt"], values["negative_prompt"]):
            if line.startswith("-"):
                problems.append(f"prompt: '{line}' begins with a -, like a flag; change it")
        return problems + self._allowed_paths.problems(values, [OPTIONS["validation_dir"]])

    def stop(self, request: Request, body: Mapping[str, Any]) -> None:
        self._job.stop()

    def state(self, request: Request) -> dict[str, Any] | None:
        """Return the job of a run and its result if they changed. The query may choose another `rule` and `within`."""
        row = row_of(request, self._queue)
        job = self._job_of(row.id)
        file = row.folder / FOLDER / RESULT
        stamp = file.stat().st_mtime_ns if file.is_file() else 0
        chosen = (request.query_params.get("rule", ""), request.query_params.get("within", ""))
        known = hashlib.sha256(repr((stamp, job, chosen)).encode()).hexdigest()[:16]
        if request.query_params.get("known") == known:
            return None
        return {"known": known, "job": job, "result": self._result(row, *chosen)}

    def _job_of(self, run: int) -> dict[str, Any] | None:
        watched = self._job.watched
        if watched is None or self._job.record.get("run") != run:
            return None
        run_state = watched.refresh()
        error = run_state.failure.get("error", "") if run_state.state in ("failed", "lost") else ""
        return {
            "over": not watched.waiting and (run_state.over or (watched.run is None and watched.end is not None)),
            "doing": f"starts when {self._job.waits_for} ends" if self._job.waits_for else _doing(run_state),
            "error": error,
            "html": error and LINKS.refused(ValueError(error)),
            "warnings": [LINKS.sentence(text) for text in run_state.warnings],
        }

    def _result(self, row: RunRow, rule: str, within: str) -> dict[str, Any] | None:
        """Return the comparison of a run, with the best by this rule or, without one, by the job's."""
        comparison = read_comparison(row.folder / FOLDER)
        if comparison is None:
            return None
        comparison.pop("measured", None)
        try:
            return self._chosen(comparison, rule, within)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):  # others may write into a run folder
            return None

    def _chosen(self, comparison: dict[str, Any], rule: str, within: str) -> dict[str, Any]:
        chosen: Rule = rule if rule in get_args(Rule) else comparison["rule"]  # type: ignore[assignment]
        asked = OPTIONS["within"].read(within)
        percent = float(comparison["within"] if OPTIONS["within"].problem(asked) else asked)
        losses = [checkpoint["loss"] for checkpoint in comparison["checkpoints"]]
        series = [checkpoint["ema"] for checkpoint in comparison["checkpoints"]]
        return {**comparison, "rule": chosen, "within": percent, "best": best(losses, chosen, percent, series)}

    def image(self, request: Request) -> Response:
        """Return an image or a clip of the comparison, or its grid as a download."""
        path = self._file(request)
        return send_media(request, path, download=path.name in (GRID, GRID_CLIP))

    def image_form(self, request: Request) -> dict[str, Any]:
        """Return the form of the tab Generate for an image of the comparison."""
        try:
            made = read_generated(self._file(request))
        except NotFound:
            raise
        except Exception as error:  # broken files raise different errors by format
            raise NotFound("This image no longer exists, or cannot be read") from error
        return as_form(made.parameters)

    def _file(self, request: Request) -> Path:
        name = request.path_params["name"]
        path = row_of(request, self._queue).folder / FOLDER / name
        if path.name != name or path.suffix not in GENERATED_TYPES:
            raise NotFound("This is not an image of the comparison")
        return allowed_file(self._allowed_paths, "file", path)


def _settings(row: RunRow) -> Mapping[str, Any]:
    """Return the settings that a run was started with; none if they are gone."""
    config = RunFolder(row.folder).config
    return read_toml(config) if config.is_file() else {}


def _has_prompts(settings: Mapping[str, Any], state: RunState) -> bool:
    """Return whether a run has prompts of its own."""
    return bool(settings.get("sample_prompts") or state.samples)


def _doing(run_state: RunState) -> str:
    if run_state.over:
        return run_state.state
    if run_state.state == "running" and run_state.total:
        return f"{run_state.phase} {run_state.done} of {run_state.total}"
    return run_state.doing


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes. They must come before live_routes, which match any action of a run."""
    tab = CheckpointsRoutes(queue, allowed_paths)
    return [
        get("run/{id:row}/checkpoints", tab.form),
        get("run/{id:row}/comparison", tab.state),
        get("run/{id:row}/comparison/image/{name}", tab.image),
        get("run/{id:row}/comparison/form/{name}", tab.image_form),
        post("run/{id:row}/comparison", tab.start),
        post("run/{id:row}/comparison/stop", tab.stop),
    ]
