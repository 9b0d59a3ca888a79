"""Reuse past runs: load their settings, compare them, and continue from their newest state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.configuration import Opened, Prepared, open_file, prepare, tab_for
from kohya_gui.form.controls import shown
from kohya_gui.tabs import TABS, Tab
from sd_scripts.formats.secrets import HANDED
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import LAST
from sd_scripts.runs.queue import PlannedRun, gpu_set
from sd_scripts.runs.store import SLURM, RunRow
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.launching.accelerate_command import sees_no_gpu
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

NOT_COMPARED = ("output_dir", "logging_dir", "resume")
"""Options that always differ between runs or do not affect training."""


def plan(prepared: Prepared, tab: Tab, family: str) -> PlannedRun:
    """Return a prepared run in the form that the queue takes."""
    assert prepared.folder is not None
    (argv, environment), settings = prepared.command.started, prepared.command.toml
    return PlannedRun(
        folder=prepared.folder,
        argv=argv,
        environment={name: value for name, value in environment.items() if name not in HANDED},
        secrets={name: value for name, value in environment.items() if name in HANDED},
        name=settings.get("output_name") or LAST,
        tab=tab.name,
        family=family,
        gpus=SLURM if settings.get("where") == "slurm" else gpu_set(settings.get("gpu_ids", ""), sees_no_gpu()),
    )


def tab_of(row: RunRow) -> Tab:
    """Return the tab that a run was started in; if the list does not have it, the one its settings are for."""
    if row.tab in TABS:
        return TABS[row.tab]
    try:
        return tab_for(RunFolder(row.folder).config)
    except ValueError:
        return TABS["lora"]


def opened_run(row: RunRow) -> tuple[Tab, Opened]:
    """Return a run's tab and the settings it was started with. Raises ValueError if they are gone."""
    config, tab = RunFolder(row.folder).config, tab_of(row)
    if not config.is_file():
        raise ValueError(f"{row.name}: settings file not found: {config}")
    return tab, open_file(config, tab, row.family or None)


def why_not(row: RunRow) -> str:
    """Return why a queued run cannot start, checked when its turn comes: files may have disappeared in the meantime."""
    tab, opened = opened_run(row)
    script = script_for(opened.family, tab.method)
    return "; ".join(map(str, preflight.problems(from_values(script, opened.unknown, opened.values))))


def continued(row: RunRow, state: Path | None, allowed_paths: AllowedPaths = EVERYWHERE) -> PlannedRun:
    """Plan a new run with the settings of a past one, resumed from `state`.

    Raises ValueError, one sentence, where there is no state to resume from.
    """
    if state is None:
        raise ValueError(f"{row.name}: no complete state to resume from; enable save_state before the next run")
    tab, opened = opened_run(row)
    values = {**opened.values, "resume": str(state)}
    prepared = prepare(values, script_for(opened.family, tab.method), opened.unknown, False, allowed_paths)
    return plan(prepared, tab, opened.family)


def differences(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return the settings in which runs differ, each with its value in every run as the form shows it."""
    every = [_settings(row) for row in rows]
    options = {name: option for settings in every if settings for name, option in settings.options.items()}
    differing = []
    for name, option in options.items():
        if name in NOT_COMPARED or option.secret:
            continue
        values = [
            _told(shown(option, settings.values()[name])) if settings and name in settings.options else "–"
            for settings in every
        ]
        if len(set(values)) > 1:
            differing.append({"option": name, "label": option.label, "values": values})
    return differing


def _settings(row: RunRow) -> Settings | None:
    try:
        tab, opened = opened_run(row)
        return Settings(script_for(opened.family, tab.method), opened.values)
    except ValueError:  # its folder is gone; the others can still be compared
        return None


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "not set"
