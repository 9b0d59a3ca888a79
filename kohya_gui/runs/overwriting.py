"""Detect which files a run would overwrite, and ask first."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from kohya_gui.server.messages import Html, message
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.formats.words import some
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import LAST, STATE_ENDING, existing_outputs, free_name
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunRow


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An output_name that is already in use in its output_dir."""

    name: str
    files: tuple[Path, ...]
    runs: tuple[RunRow, ...]
    """Active or queued runs that write files of this name."""
    free_name: str

    @property
    def can_be_continued(self) -> bool:
        """Whether a state was saved under this name that no active run may still replace."""
        return not self.runs and any(path.name.endswith(STATE_ENDING) for path in self.files)


def find_taken(values: Mapping[str, Any], queue: RunQueue) -> Taken | None:
    """Return the files that a run with these settings would overwrite; None if nothing, or if `overwrite` is set."""
    if not values.get("output_dir") or values.get("overwrite") or values.get("resume"):
        return None
    folder, name = _folder(values["output_dir"]), values.get("output_name") or LAST
    others = [(row, _place(row)) for row in (*queue.store.living(), *queue.store.queued())]
    runs = tuple(row for row, place in others if place == (folder, name))
    files = tuple(existing_outputs(values))
    if not files and not runs:
        return None
    names = {place[1] for _, place in others if place and place[0] == folder}
    return Taken(name=name, files=files, runs=runs, free_name=free_name(folder, name, names))


def question(taken: Taken) -> str:
    """Return the question with a button for each answer; the page's script sends it back (fields.js)."""
    name = taken.name
    ways = [
        (
            "rename",
            f"Use '{taken.free_name}'",
            f"Both runs keep their files; the new ones are named '{taken.free_name}'",
        )
    ]
    if taken.can_be_continued:
        ways.append(("continue", "Continue that run", "Resume from its latest state (resume = latest)"))
    ways.append(("replace", "Replace it", f"Overwrite the files of '{name}' (overwrite)"))
    buttons = "".join(
        f'<button type="button" data-answer="{escape(f"{way}:{name}")}" title="{escape(why)}">{escape(words)}</button>'
        for way, words, why in ways
    )
    return message("warning", told(taken), more=Html(f'<div class="ways">{buttons}</div>'), attributes=" data-question")


def told(taken: Taken) -> str:
    """Describe which files or runs use the output name."""
    used = []
    if taken.files:
        names = [f"'{path.name}'" for path in taken.files]
        used.append(f"{some(names)} in '{taken.files[0].parent}'")
    used += ["a run that is queued" if run.state == "queued" else "a run that is active" for run in taken.runs]
    return f"The output name '{taken.name}' is already in use: {'; '.join(used)}"


def answered(values: Mapping[str, Any], answer: str, taken: Taken) -> dict[str, Any] | None:
    """Return the settings changed by the answer; None if it answers a different question."""
    way, _, name = answer.partition(":")
    if name != taken.name:
        return None
    match way:
        case "rename":
            return {**values, "output_name": taken.free_name}
        case "continue" if taken.can_be_continued:
            return {**values, "resume": "latest"}
        case "replace":
            return {**values, "overwrite": True}
    return None


def _folder(output_dir: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(output_dir)))


def _place(row: RunRow) -> tuple[Path, str] | None:
    """Return the output_dir and output_name of a listed run."""
    try:
        settings = read_toml(RunFolder(row.folder).config)
    except ValueError:
        return None
    return _folder(str(settings.get("output_dir") or ".")), str(settings.get("output_name") or LAST)
